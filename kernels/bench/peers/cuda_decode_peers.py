"""Decode rows of ours (paged, random page table) and PyTorch's back ends (contiguous), interleaved by CUDA-graph replay:
cuda_decode_peers.py LIBRARY OUT.jsonl [--row NAME] [--repeats N]"""
import argparse
import json
import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel
from attnd_library import Library
from cuda_prefill_peers import BACKENDS, interleaved

SHAPES = ((32, 8, 1, 8192), (32, 1, 1, 8192), (32, 8, 16, 2048), (32, 8, 64, 8192), (32, 8, 256, 1024), (32, 32, 64, 8192),
          (32, 32, 256, 1024), (32, 1, 64, 2048), (64, 8, 64, 8192), (32, 8, 1, 131072))


def capture(fn, sets, launches):
    for x in sets:
        fn(*x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            fn(*sets[i % len(sets)])
    return [graph]


def pages(b, hk, s, d, page, dtype):
    """A pool of random keys and values, and a random page table."""
    count = b * s // page
    pool = torch.randn(count, 2 * hk * page * d, device="cuda", dtype=dtype)
    unit = pool.shape[1] * pool.element_size() // 128
    table = (torch.randperm(count, device="cuda") * unit).to(torch.uint32).view(b, s // page)
    return pool, table


def decode(lib, out, row, dtype, h, hk, b, s, d, launches, repeats):
    kv_bytes = 2 * b * hk * s * d * 2
    count = max(1, min(8, int(400e6 // kv_bytes) + 1))
    named, keep, splits = {}, [], 0
    for page in (16, 64):
        sets = []
        for _ in range(count):
            q = torch.randn(b, 1, h, d, device="cuda", dtype=dtype)
            pool, table = pages(b, hk, s, d, page, dtype)
            launch = lib.plan(row, q, None, None, torch.empty_like(q), pool=pool, table=table, page_tokens=page, kv_heads=hk,
                              kv_lengths=[s] * b, causal=True)
            splits = launch.splits()
            sets.append((launch,))
        keep.append(sets)
        named[f"attnd_page{page}"] = capture(lambda launch: launch(), sets, launches)
    sets = [tuple(torch.randn(b, n, t, d, device="cuda", dtype=dtype) for n, t in ((h, 1), (hk, s), (hk, s))) for _ in range(count)]
    for name in ("flash", "cudnn"):
        with sdpa_kernel(BACKENDS[name]):
            named[name] = capture(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=h != hk), sets, launches)
    times = {name: t / launches for name, t in interleaved(named, repeats).items()}
    line = json.dumps(dict(op="decode", launches=launches, h=h, hk=hk, b=b, s=s, d=d, splits=splits,
                           **{n: f"{t * 1e3:.1f}us {kv_bytes / t * 1e-6:.0f}GB/s" for n, t in times.items()}))
    print(line, flush=True)
    out.write(line + "\n")
    out.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("out")
    parser.add_argument("--row", default="sm80/decode_mma_bf16_d128")
    parser.add_argument("--launches", default="1,12", help="launches that share a graph")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    lib = Library(args.library)
    with open(args.out, "w") as out:
        for launches in map(int, args.launches.split(",")):
            for h, hk, b, s in SHAPES:
                decode(lib, out, args.row, torch.float16 if "fp16" in args.row else torch.bfloat16, h, hk, b, s, 128, launches, args.repeats)


if __name__ == "__main__":
    main()
