"""One of PyTorch's CUDA back ends as a peer of attnbench; the protocol stands in bench_peer.h.

Calls are captured into CUDA graphs and replayed between two events, as attnbench does with its own rows. Tensors are
contiguous [batch, head, token, dim], the layout that suits these functions best, in as many sets as pass the L2.
Back ends: flash, efficient, cudnn (scaled_dot_product_attention), eager (matmul -> softmax -> matmul).
"""

import argparse
import gc
import json
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as error:
    print(json.dumps({"error": f"{error}; install PyTorch there or name another Python with --python"}), flush=True)
    sys.exit(1)

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
BEYOND_L2 = 400e6
MAX_SETS = 8


def eager(q, k, v, mask):
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


class Call:
    """Graphs of one shape, and the peak memory of a call beyond its tensors."""

    def __init__(self, backend, shape):
        causal = shape["causal"] and shape["query_length"] > 1
        dtype = TYPES[shape["dtype"]]

        def tensor(heads, tokens):
            return torch.randn(shape["sequences"], heads, tokens, shape["head_dim"], device="cuda", dtype=dtype)

        def make_set():
            return (tensor(shape["num_heads"], shape["query_length"]), tensor(shape["num_kv_heads"], shape["kv_length"]),
                    tensor(shape["num_kv_heads"], shape["kv_length"]))

        first = make_set()
        count = min(MAX_SETS, int(BEYOND_L2 / sum(t.numel() * t.element_size() for t in first)) + 1)
        self.sets = [first] + [make_set() for _ in range(count - 1)]
        grouped = shape["num_heads"] != shape["num_kv_heads"]
        if backend == "eager":
            length = shape["kv_length"]
            mask = torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1) if causal else None
            run = lambda q, k, v: eager(q, k, v, mask)
        else:
            def run(q, k, v):
                with sdpa_kernel(BACKENDS[backend]):
                    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(*first)
        torch.cuda.synchronize()
        self.extra_bytes = torch.cuda.max_memory_allocated() - before
        for one in self.sets:
            run(*one)
        torch.cuda.synchronize()
        launches = shape["graph_launches"]
        self.launches = launches
        self.graphs = []
        for start in range(count if launches == 1 else 1):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(launches):
                    run(*self.sets[(start + i) % count])
            self.graphs.append(graph)
        self.next = 0

    def replay(self):
        self.graphs[self.next].replay()
        self.next = (self.next + 1) % len(self.graphs)

    def seconds(self, calls):
        self.replay()  # not timed: the card comes from another process
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        for _ in range(calls):
            self.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3 / self.launches


def answer(message):
    print(json.dumps(message), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=[*BACKENDS, "eager"], required=True)
    backend = parser.parse_args().backend
    answer({"peer": f"torch {torch.__version__.split('+')[0]} {backend}"})
    call = None
    with torch.inference_mode():
        for line in sys.stdin:
            request = json.loads(line)
            if "prepare" in request or "release" in request:
                call = None
                gc.collect()
                torch.cuda.empty_cache()
            if "prepare" in request:
                try:
                    call = Call(backend, request["prepare"])
                    answer({"ready": True, "extra_bytes": call.extra_bytes})
                except (RuntimeError, torch.OutOfMemoryError) as error:
                    call = None
                    answer({"refused": str(error)[:200]})
            elif "run" in request:
                answer({"seconds": call.seconds(request["run"])})
            else:
                answer({"released": True})


if __name__ == "__main__":
    main()
