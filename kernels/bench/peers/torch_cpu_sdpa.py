"""PyTorch's CPU scaled_dot_product_attention as a peer of attnbench; the protocol stands in bench_peer.h.

Tensors are contiguous [batch, head, token, dim], the layout that suits this function best.
"""

import argparse
import json
import sys
import time

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as error:
    print(json.dumps({"error": f"{error}; install PyTorch there or name another Python with --python"}), flush=True)
    sys.exit(1)

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def prepare(shape):
    """The call to be timed, or a text that says why there is none."""
    if shape["window_left"] >= 0:
        return "a window needs a mask tensor, which is another computation"
    causal = shape["causal"] and shape["query_length"] > 1
    if causal and shape["query_length"] != shape["kv_length"]:
        return "is_causal aligns to the top left"

    def tensor(heads, tokens):
        return torch.randn(shape["sequences"], heads, tokens, shape["head_dim"]).to(TYPES[shape["dtype"]])

    q = tensor(shape["num_heads"], shape["query_length"])
    k = tensor(shape["num_kv_heads"], shape["kv_length"])
    v = tensor(shape["num_kv_heads"], shape["kv_length"])
    grouped = shape["num_heads"] != shape["num_kv_heads"]
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    answer({"peer": f"torch {torch.__version__.split('+')[0]} SDPA"})
    call = None
    with torch.inference_mode():
        for line in sys.stdin:
            request = json.loads(line)
            if "prepare" in request:
                call = prepare(request["prepare"])
                answer({"refused": call} if isinstance(call, str) else {"ready": True})
            else:
                begin = time.perf_counter()
                for _ in range(request["run"]):
                    call()
                answer({"seconds": time.perf_counter() - begin})


def answer(message):
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
