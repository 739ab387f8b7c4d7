"""Every CUDA row against float64 on random shapes and options: check_cuda_rows.py LIBRARY [name filter] [every Nth case]. Exit code 1 on a miss."""
import itertools
import sys
import torch
from attention_oracle import attention, error_budget
from attnd_library import Library

DEV = "cuda"
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make_pages(k, v, kv_lengths, page_tokens):
    """Scatters ragged contiguous k and v [sequence, key, head, dim] into a shuffled pool; unused rows NaN, unused entries invalid."""
    b, sk, hk, d = k.shape
    padded = (d + 31) // 32 * 32
    per = (sk + page_tokens - 1) // page_tokens
    page_bytes = (2 * hk * page_tokens * padded * k.element_size() + 127) // 128 * 128
    elements = page_bytes // k.element_size()
    pool = torch.full((b * per + 3, elements), float("nan"), device=k.device, dtype=k.dtype)
    order = torch.randperm(b * per + 3)[: b * per].view(b, per)
    table = torch.full((b, per + 1), 0xFFFFFFFF, dtype=torch.int64)
    for i in range(b):
        for p in range((kv_lengths[i] + page_tokens - 1) // page_tokens):
            page = pool[order[i, p]][: 2 * hk * page_tokens * padded].view(2, hk, page_tokens, padded)
            n = min(page_tokens, kv_lengths[i] - p * page_tokens)
            rows = slice(p * page_tokens, p * page_tokens + n)
            page[:, :, :n] = 0
            page[0, :, :n, :d] = k[i, rows].transpose(0, 1)
            page[1, :, :n, :d] = v[i, rows].transpose(0, 1)
            table[i, p] = order[i, p] * (page_bytes // 128)
    return pool, table.to(torch.uint32).to(k.device)


def check(lib, row, dtype, h, hk, d, query_lengths, kv_lengths, page_tokens=0, magnitude=1.0, **options):
    b, sq, sk = len(query_lengths), max(query_lengths), max(kv_lengths)
    q = torch.randn(b, sq, h, d, device=DEV).mul(magnitude).to(dtype)
    k, v = (torch.randn(b, max(sk, 1), hk, d, device=DEV).to(dtype) for _ in range(2))
    partial = options.pop("partial", False)
    splits = options.pop("splits", 0)
    o = torch.full((b, sq, h, d), float("nan"), device=DEV, dtype=torch.float32 if partial else dtype)
    lse = torch.full((b, sq, h), float("nan"), device=DEV)
    given = dict(query_lengths=query_lengths, kv_lengths=kv_lengths, partial=partial, splits=splits, **options)
    if page_tokens:
        pool, table = make_pages(k, v, kv_lengths, page_tokens)
        launch = lib.plan(row, q, None, None, o, lse, pool=pool, table=table, page_tokens=page_tokens, kv_heads=hk, **given)
    else:
        for i in range(b):  # what lies past a sequence's end must not matter
            k[i, kv_lengths[i]:] = float("nan")
            v[i, kv_lengths[i]:] = float("nan")
        launch = lib.plan(row, q, k, v, o, lse, **given)
    launch()
    torch.cuda.synchronize()
    problems = []
    word, nonfinite = launch.status()
    if word or nonfinite:
        problems.append(f"error word {word}, non-finite tiles {nonfinite}")
    if partial:
        options = {**options, "sinks": None}
    worst = 0.0
    parts = [(q[i, :query_lengths[i]], k[i, :kv_lengths[i]], v[i, :kv_lengths[i]]) for i in range(b)]
    answers = [attention(*part, **options) for part in parts]
    # One budget a case: a single short sequence is too small a sample of rounding errors.
    budget = max(error_budget(*part, expected, **options) for part, (expected, _) in zip(parts, answers))
    for i in range(b):
        n = query_lengths[i]
        expected, expected_lse = answers[i]
        error = (o[i, :n].double() - expected).abs()
        if n and not error.max().item() <= budget:
            problems.append(f"sequence {i}: error {error.max().item():.3g} over {budget:.3g} at {(error.nan_to_num(9e9)).argmax().item()}")
        if n:
            worst = max(worst, error.max().item() / max(budget, 1e-30))
            both_empty = (lse[i, :n] == float("-inf")) & (expected_lse == float("-inf"))
            lse_error = torch.where(both_empty, 0.0, (lse[i, :n].double() - expected_lse).abs()).max().item()
            if not lse_error <= 1e-5 * max(1.0, expected_lse.nan_to_num(0, 0, 0).abs().max().item()):
                problems.append(f"sequence {i}: lse off by {lse_error:.3g}")
        if not o[i, n:].isnan().all() or not lse[i, n:].isnan().all():
            problems.append(f"sequence {i}: rows past its end were written")
    return problems, worst


def cases(row, d):
    """Shapes around the tile sizes, ragged batches, odd head dimensions, GQA, pages, each option alone and together."""
    all_options = "all" in row or "simt" in row
    decode = "decode" in row
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(8)], device=DEV)
    sinks = torch.linspace(-2, 3, 8, device=DEV)
    lengths = [([1], [1]), ([4], [300]), ([1, 3, 1, 2, 4], [1, 64, 65, 1000, 2049])] if decode else \
        [([1], [1]), ([128], [128]), ([127], [129]), ([200], [333]), ([64, 1, 300, 17], [64, 257, 300, 1000]), ([100], [40])]
    for ql, kl in lengths:
        for hk in (8, 2, 1):
            yield dict(h=8, hk=hk, d=d, query_lengths=ql, kv_lengths=kl, causal=True)
            yield dict(h=8, hk=hk, d=d, query_lengths=ql, kv_lengths=kl)
        for page in (1, 4, 16, 64, 256):
            yield dict(h=8, hk=2, d=d, query_lengths=ql, kv_lengths=kl, causal=True, page_tokens=page)
    ql, kl = lengths[-2] if not decode else lengths[-1]
    for extra in (dict(left=100), dict(left=0), dict(left=33, right=5), dict(right=70), dict(causal=True, left=77), dict(scale=0.0),
                  dict(scale=-0.3), dict(scale=1.0), dict(partial=True), dict(magnitude=40.0), dict(scale=3e6)):
        yield dict(h=8, hk=4, d=d, query_lengths=ql, kv_lengths=kl, **extra)
        yield dict(h=8, hk=4, d=d, query_lengths=ql, kv_lengths=kl, page_tokens=16, **extra)
    for odd in (d - 8, d - 24, d // 2 + 8):
        yield dict(h=8, hk=2, d=odd, query_lengths=ql, kv_lengths=kl, causal=True)
        yield dict(h=8, hk=2, d=odd, query_lengths=ql, kv_lengths=kl, causal=True, page_tokens=32)
    if decode:
        for splits in (1, 2, 3, 7):
            yield dict(h=8, hk=2, d=d, query_lengths=ql, kv_lengths=kl, causal=True, page_tokens=16, splits=splits)
    if all_options or decode:
        for extra in (dict(cap=5.0), dict(cap=50.0, magnitude=20.0), dict(slopes=slopes), dict(sinks=sinks), dict(sinks=sinks, partial=True),
                      dict(cap=10.0, slopes=slopes, sinks=sinks, causal=True, left=90)):
            yield dict(h=8, hk=4, d=d, query_lengths=ql, kv_lengths=kl, **extra)
        yield dict(h=8, hk=4, d=d, query_lengths=[4 if decode else 70], kv_lengths=[210], bias=torch.randn(8, 4 if decode else 70, 210, device=DEV))


def check_nonfinite(lib, row, dtype, d):
    """NaN and Inf in one key's value, seen by the queries from that key on only. A tensor-core row flags its tiles; the
    exact row keeps them out of every other query."""
    n, at = 200, 130
    q, k, v = (torch.randn(1, n, h, d, device=DEV).to(dtype) for h in (4, 2, 2))
    v[0, at, 0, 3] = float("nan")
    v[0, at, 1, 5] = float("inf")
    o = torch.zeros(1, n, 4, d, device=DEV, dtype=dtype)
    launch = lib.plan(row, q, k, v, o, causal=True)
    launch()
    torch.cuda.synchronize()
    word, flagged = launch.status()
    # In two calls: an oracle that multiplies hidden values with 0 would spread the NaN itself.
    expected = torch.cat([attention(q[0, :at], k[0, :at], v[0, :at], causal=True)[0], attention(q[0, at:], k[0], v[0], causal=True)[0]])
    if "simt" not in row:
        return [] if flagged > 0 and word == 0 else [f"{flagged} tiles flagged, error word {word}"]
    same = (o[0].isnan() == expected.isnan()) & (o[0].isinf() == expected.isinf())
    return [] if same.all() and not flagged else [f"{(~same).sum().item()} elements differ in being NaN or Inf, {flagged} flagged"]


def check_bad_page(lib, row, dtype, d):
    """A page table entry outside the pool is reported and nothing is read through it."""
    k, v = (torch.randn(1, 100, 2, d, device=DEV).to(dtype) for _ in range(2))
    pool, table = make_pages(k, v, [100], 16)
    table[0, 3] = 0xFFFFFF00
    q = torch.randn(1, 4, 4, d, device=DEV).to(dtype)
    launch = lib.plan(row, q, None, None, torch.zeros_like(q), pool=pool, table=table, page_tokens=16, kv_heads=2, kv_lengths=[100])
    launch()
    torch.cuda.synchronize()
    word, _ = launch.status()
    return [] if word == 1 else [f"error word {word} after an invalid page"]


def main():
    torch.manual_seed(1)
    lib = Library(sys.argv[1])
    failed = 0
    for row in lib.rows():
        if len(sys.argv) > 2 and sys.argv[2] not in row:
            continue
        dtype = next(t for name, t in TYPES.items() if name in row)
        d = next(x for x in (256, 128, 64) if f"d{x}" in row)
        count, bad, worst = 0, 0, 0.0
        for case in itertools.islice(cases(row, d), 0, None, int(sys.argv[3]) if len(sys.argv) > 3 else 1):
            count += 1
            problems, ratio = check(lib, row, dtype, **case)
            worst = max(worst, ratio)
            if problems:
                bad += 1
                if bad <= 3:
                    shown = {k: (v if not torch.is_tensor(v) else "tensor") for k, v in case.items()}
                    print(f"  {row} {shown}: {problems[:3]}", flush=True)
        for special in (check_nonfinite, check_bad_page):
            if "decode" in row and special is check_nonfinite:
                continue  # its batch is no decode batch
            count += 1
            problems = special(lib, row, dtype, d)
            if problems:
                bad += 1
                print(f"  {row} {special.__name__}: {problems}", flush=True)
        failed += bad
        print(f"{row}: {count - bad} of {count} right, largest error {worst:.2f} of the budget", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
