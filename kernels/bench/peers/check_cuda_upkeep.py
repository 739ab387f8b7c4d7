"""Append with rotation, rotation of queries and the merge of states against float64: check_cuda_upkeep.py LIBRARY"""
import ctypes as c
import sys
import torch
from attention_oracle import attention

DEV = "cuda"


class Rope(c.Structure):
    _fields_ = [("theta", c.c_double), ("position_scale", c.c_double), ("amplitude", c.c_double), ("rotary_dim", c.c_int32),
                ("interleaved", c.c_int32)]


def rotate(x, position, rope):
    """x [tokens, heads, dim] in float64."""
    x = x.double().clone()
    half = rope.rotary_dim // 2
    frequency = rope.theta ** (-2.0 * torch.arange(half, device=x.device, dtype=torch.float64) / rope.rotary_dim)
    angle = (position + torch.arange(x.shape[0], device=x.device, dtype=torch.float64))[:, None, None] * rope.position_scale * frequency
    cosine, sine = torch.cos(angle) * rope.amplitude, torch.sin(angle) * rope.amplitude
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if rope.interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = x[..., first].clone(), x[..., second].clone()
    x[..., first], x[..., second] = a * cosine - b * sine, a * sine + b * cosine
    return x


def check_append(lib, d, hk, page, tokens, first, position, rope):
    padded = (d + 31) // 32 * 32
    k, v = (torch.randn(tokens, hk, d, device=DEV).bfloat16() for _ in range(2))
    pages = (first + tokens + page - 1) // page
    page_elements = (2 * hk * page * padded * 2 + 127) // 128 * 64
    pool = torch.full((pages + 2, page_elements), -7.0, device=DEV, dtype=torch.bfloat16)
    order = torch.randperm(pages + 2)[:pages]
    table = (order * (page_elements * 2 // 128)).to(torch.uint32).to(DEV)
    error = lib.AttndBenchAppend(k.data_ptr(), v.data_ptr(), tokens, hk, d, first, position, table.data_ptr(), page, pool.data_ptr(),
                                 pool.numel() * 2, c.byref(rope) if rope else None)
    if error:
        return f"append returned {error}"
    expected = torch.full_like(pool, -7.0)
    wanted_k = rotate(k, position, rope).bfloat16() if rope else k
    for i in range(tokens):
        at = first + i
        view = expected[order[at // page]][: 2 * hk * page * padded].view(2, hk, page, padded)
        view[:, :, at % page] = 0
        view[0, :, at % page, :d], view[1, :, at % page, :d] = wanted_k[i], v[i]
    # One rounding of the result may fall the other way.
    wrong = ((pool.float() - expected.float()).abs() > expected.float().abs() * 2 ** -7 + 1e-5).sum().item()
    return f"{wrong} elements wrong" if wrong else None


def check_rotate(lib, d, h, tokens, position, rope):
    q = torch.randn(tokens, h, d, device=DEV).bfloat16()
    expected = rotate(q, position, rope)
    error = lib.AttndBenchRotate(q.data_ptr(), tokens, h, d, position, c.byref(rope))
    if error:
        return f"rotate returned {error}"
    wrong = ((q.double() - expected).abs() > expected.abs() * 2 ** -8 + 1e-5).sum().item()
    return f"{wrong} elements wrong" if wrong else None


def check_merge(lib, d, parts, sinks):
    n, h, sk = 37, 4, 300
    q, k, v = torch.randn(n, h, d, device=DEV), torch.randn(sk, h, d, device=DEV), torch.randn(sk, h, d, device=DEV)
    sink = torch.randn(h, device=DEV) if sinks else None
    whole, whole_lse = attention(q, k, v, sinks=sink)
    cuts = [0, 1, 100, 180, sk][: parts] + [sk]
    states = [attention(q, k[a:b], v[a:b]) for a, b in zip(cuts, cuts[1:])]
    o_parts = torch.stack([s[0] for s in states] + [torch.full_like(whole, float("nan"))]).float().contiguous()
    lse_parts = torch.stack([s[1] for s in states] + [torch.full_like(whole_lse, float("-inf"))]).float().contiguous()
    o, lse = torch.empty(n, h, d, device=DEV), torch.empty(n, h, device=DEV)
    rows = sink.repeat(n, 1).contiguous() if sinks else None
    error = lib.AttndBenchMerge(o_parts.data_ptr(), lse_parts.data_ptr(), len(states) + 1, n * h, d, rows.data_ptr() if sinks else None,
                                o.data_ptr(), lse.data_ptr())
    if error:
        return f"merge returned {error}"
    off = max((o.double() - whole).abs().max().item(), (lse.double() - whole_lse).abs().max().item())
    return f"off by {off:.3g}" if not off < 4e-6 else None


def main():
    lib = c.CDLL(sys.argv[1])
    lib.AttndBenchAppend.argtypes = [c.c_void_p, c.c_void_p, c.c_int32, c.c_int32, c.c_int32, c.c_int64, c.c_int64, c.c_void_p, c.c_int32,
                                     c.c_void_p, c.c_int64, c.c_void_p]
    lib.AttndBenchRotate.argtypes = [c.c_void_p, c.c_int32, c.c_int32, c.c_int32, c.c_int64, c.c_void_p]
    lib.AttndBenchMerge.argtypes = [c.c_void_p, c.c_void_p, c.c_int32, c.c_int64, c.c_int32, c.c_void_p, c.c_void_p, c.c_void_p]
    torch.manual_seed(2)
    ropes = [Rope(10000.0, 1.0, 1.0, 64, 0), Rope(500000.0, 0.25, 1.2, 32, 1)]
    results = {}
    for d, hk, page, tokens, first in ((64, 2, 16, 40, 7), (128, 8, 1, 5, 0), (80, 3, 64, 130, 60), (256, 1, 256, 300, 255)):
        for rope in (None, *ropes):
            for position in (0, 1000003):
                results[f"append d{d} page{page} {'rope' if rope else 'plain'} {position}"] = check_append(lib, d, hk, page, tokens, first, position, rope)
    for rope in ropes:
        results[f"rotate {rope.rotary_dim}"] = check_rotate(lib, 128, 8, 33, 1000003, rope)
    for parts in (1, 2, 4):
        for sinks in (False, True):
            results[f"merge {parts} {sinks}"] = check_merge(lib, 128, parts, sinks)
    bad = {name: problem for name, problem in results.items() if problem}
    for name, problem in bad.items():
        print(f"  {name}: {problem}")
    print(f"upkeep: {len(results) - len(bad)} of {len(results)} right")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
