"""The CUDA rows on PyTorch tensors: ctypes over cuda_bench_library.h."""
import ctypes as c
import torch

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class Call(c.Structure):
    _fields_ = (
        [(n, c.c_int32) for n in ("data_type", "num_heads", "num_kv_heads", "head_dim", "partial", "num_sequences")]
        + [("query_lengths", c.c_void_p), ("kv_lengths", c.c_void_p)]
        + [(n, c.c_void_p) for n in ("q", "k", "v", "o", "lse")]
        + [(n, c.c_int64) for n in ("q_sequence", "q_token", "q_head", "k_sequence", "k_token", "k_head",
                                    "o_sequence", "o_token", "o_head", "lse_sequence")]
        + [("causal", c.c_int32), ("window_left", c.c_int64), ("window_right", c.c_int64),
           ("softmax_scale", c.c_float), ("soft_cap", c.c_float)]
        + [(n, c.c_void_p) for n in ("alibi_slopes", "sink_logits", "bias")]
        + [("bias_head", c.c_int64), ("bias_row", c.c_int64)]
        + [("page_table", c.c_void_p), ("page_table_stride", c.c_int64), ("page_tokens", c.c_int32),
           ("pool", c.c_void_p), ("pool_bytes", c.c_int64)])


class Library:
    def __init__(self, path):
        self.lib = c.CDLL(path)
        self.lib.AttndBenchRows.restype = c.c_char_p
        self.lib.AttndBenchPlan.restype = c.c_void_p
        self.lib.AttndBenchPlan.argtypes = [c.POINTER(Call), c.c_char_p, c.c_int32]
        self.lib.AttndBenchRun.argtypes = [c.c_void_p, c.c_void_p]
        self.lib.AttndBenchSplits.argtypes = [c.c_void_p]
        self.lib.AttndBenchWorkspaceBytes.argtypes = [c.c_void_p]
        self.lib.AttndBenchWorkspaceBytes.restype = c.c_int64
        self.lib.AttndBenchStatus.argtypes = [c.c_void_p, c.POINTER(c.c_uint32), c.POINTER(c.c_int32)]
        self.lib.AttndBenchFree.argtypes = [c.c_void_p]

    def rows(self):
        return self.lib.AttndBenchRows().decode().split()

    def plan(self, row, q, k, v, o, lse=None, **options):
        return Launch(self.lib, row, q, k, v, o, lse, **options)


class Launch:
    """q, o: [sequence, token, head, dim]; k, v alike, or None with `pool` and `table`. Any strides but the last's."""

    def __init__(self, lib, row, q, k, v, o, lse=None, query_lengths=None, kv_lengths=None, causal=False, left=-1, right=-1,
                 scale=None, cap=0.0, slopes=None, sinks=None, bias=None, pool=None, table=None, page_tokens=1,
                 kv_heads=None, splits=0, partial=False):
        b, sq, h, d = q.shape
        self.lib, self.keep = lib, (q, k, v, o, lse, slopes, sinks, bias, pool, table)
        ql = (c.c_int32 * b)(*(query_lengths or [sq] * b))
        kl = (c.c_int32 * b)(*(kv_lengths or [k.shape[1]] * b))
        ptr = lambda t: t.data_ptr() if t is not None else None
        call = Call(TYPES[q.dtype], h, k.shape[2] if k is not None else kv_heads, d, int(partial), b, c.addressof(ql),
                    c.addressof(kl), ptr(q), ptr(k), ptr(v), ptr(o), ptr(lse), *q.stride()[:3],
                    *(k.stride()[:3] if k is not None else (0, 0, 0)), *o.stride()[:3],
                    lse.stride(0) if lse is not None else 0, int(causal), left, right, d ** -0.5 if scale is None else scale, cap,
                    ptr(slopes), ptr(sinks), ptr(bias), bias.stride(0) if bias is not None else 0,
                    bias.stride(1) if bias is not None else 0, ptr(table), table.stride(0) if table is not None else 0,
                    page_tokens, ptr(pool), pool.numel() * pool.element_size() if pool is not None else 0)
        self.handle = lib.AttndBenchPlan(c.byref(call), row.encode(), splits)
        if not self.handle:
            raise RuntimeError(f"{row}: no plan")

    def __call__(self):
        error = self.lib.AttndBenchRun(self.handle, torch.cuda.current_stream().cuda_stream)
        if error:
            raise RuntimeError(f"launch failed: LaunchStatus {error}")

    def splits(self):
        return self.lib.AttndBenchSplits(self.handle)

    def workspace_bytes(self):
        return self.lib.AttndBenchWorkspaceBytes(self.handle)

    def status(self):
        word, nonfinite = c.c_uint32(), c.c_int32()
        self.lib.AttndBenchStatus(self.handle, c.byref(word), c.byref(nonfinite))
        return word.value, nonfinite.value

    def __del__(self):
        if getattr(self, "handle", None):
            self.lib.AttndBenchFree(self.handle)
