"""Prefill rows of ours and PyTorch's back ends, interleaved by CUDA-graph replay in one process:
cuda_prefill_peers.py LIBRARY OUT.jsonl [--quick] [--rows a,b,c]"""
import argparse
import json
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from attnd_library import Library

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def graphs(fn, sets):
    for x in sets:
        fn(*x)
    torch.cuda.synchronize()
    result = []
    for x in sets:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fn(*x)
        result.append(graph)
    return result


def interleaved(named, repeats):
    times = {name: [] for name in named}
    for i in range(repeats + 2):
        for name, replays in named.items():
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            replays[i % len(replays)].replay()
            end.record()
            torch.cuda.synchronize()
            if i >= 2:
                times[name].append(start.elapsed_time(end))
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def prefill(lib, out, rows, backends, dtype, b, h, hk, s, d, causal, repeats):
    count = 1 if b * s * (h + 2 * hk) * d * 2 > 200e6 else 3
    sets = []
    for _ in range(count):
        q, k, v = (torch.randn(b, s, n, d, device="cuda", dtype=dtype) for n in (h, hk, hk))
        sets.append((q, k, v, torch.empty_like(q)))
    heads_first = [tuple(t.transpose(1, 2).contiguous() for t in x[:3]) for x in sets]
    named = {}
    for name in backends:
        with sdpa_kernel(BACKENDS[name]):
            named[name] = graphs(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=h != hk), heads_first)
    keep = []
    for row in rows:
        launches = [(lib.plan(row, *x, causal=causal),) for x in sets]
        keep.append(launches)
        named[row] = graphs(lambda launch: launch(), launches)
    flops = 4 * b * h * s * s * d * (0.5 if causal else 1)
    rates = {name: round(flops / t * 1e-9, 1) for name, t in interleaved(named, repeats).items()}
    line = json.dumps(dict(op="prefill", b=b, h=h, hk=hk, s=s, d=d, causal=causal, dtype=str(dtype)[6:], **rates))
    print(line, flush=True)
    out.write(line + "\n")
    out.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", default="")
    parser.add_argument("--types", default="bfloat16,float16")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    lib = Library(args.library)
    out = open(args.out, "w")
    for type_name in args.types.split(","):
        dtype = getattr(torch, type_name)
        short = {"bfloat16": "bf16", "float16": "fp16"}[type_name]
        for d, h in ((64, 32), (128, 16), (256, 8)):
            rows = args.rows.split(",") if args.rows else [r for r in lib.rows() if "prefill" in r and short in r and "all" not in r and "simt" not in r]
            rows = [r for r in rows if f"d{d}" in r]
            backends = ["flash"] if dtype == torch.bfloat16 else ["flash", "efficient"]
            for s in (512, 4096) if args.quick else (512, 1024, 2048, 4096, 8192, 16384):
                for causal in (False, True):
                    prefill(lib, out, rows, backends, dtype, 16384 // s, h, h, s, d, causal, args.repeats)
        rows = [r for r in rows if "d128" in r] or [r for r in lib.rows() if "prefill" in r and short in r and "d128" in r and "all" not in r and "simt" not in r]
        if not args.quick:
            for s in (512, 2048, 8192, 32768):
                prefill(lib, out, rows, ["flash"], dtype, max(1, 8192 // s), 32, 8, s, 128, True, args.repeats)


if __name__ == "__main__":
    main()
