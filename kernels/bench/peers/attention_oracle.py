"""Attention in float64 on the GPU, straight from the definition, and the error rule every kernel is held to."""
import torch


def attention(q, k, v, causal=False, left=-1, right=-1, scale=None, cap=0.0, slopes=None, sinks=None, bias=None,
              probability_type=None, compute=torch.float64):
    """q [tokens, heads, dim], k and v [keys, kv_heads, dim]; returns o and lse, computed in `compute`."""
    sq, h, d = q.shape
    sk, hk, _ = k.shape
    q, k, v = (t.to(compute) for t in (q, k, v))
    k, v = (t.repeat_interleave(h // hk, 1) for t in (k, v))
    s = torch.einsum("qhd,khd->hqk", q, k) * (d ** -0.5 if scale is None else scale)
    if cap > 0:
        s = cap * torch.tanh(s / cap)
    if bias is not None:
        s = s + bias.to(compute)
    p = torch.arange(sq, device=q.device)[:, None] + sk - sq
    j = torch.arange(sk, device=q.device)[None, :]
    if slopes is not None:
        s = s - slopes.to(compute)[:, None, None] * (p - j).abs()
    hidden = torch.zeros(sq, sk, dtype=torch.bool, device=q.device)
    if causal:
        hidden |= j > p
    elif right >= 0:
        hidden |= j > p + right
    if left >= 0:
        hidden |= j < p - left
    s = s.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        s = torch.cat([s, sinks.to(compute)[:, None, None].expand(h, sq, 1)], 2)
    lse = torch.logsumexp(s, 2)
    w = torch.exp(s - torch.where(lse.isinf(), torch.zeros_like(lse), lse)[:, :, None])[:, :, :sk]
    w = torch.where(s[:, :, :sk] == float("-inf"), torch.zeros_like(w), w)
    if probability_type is not None:
        w = w.to(probability_type).to(compute)
    return torch.einsum("hqk,khd->qhd", w, v), lse.transpose(0, 1)


def error_budget(q, k, v, reference, **options):
    """Twice the largest error of an unfused pipeline with FP32 scores and probabilities in the input's type, plus a floor, since
    one query of a few keys may by luck have no error at all: one rounding of the largest output, and what the hardware's ex2
    (2 ulp, so 2^-22 of every weight) can add to an average of values."""
    unfused, _ = attention(q, k, v, probability_type=q.dtype, compute=torch.float32, **options)
    error = (unfused.to(q.dtype).double() - reference).abs().nan_to_num().max().item() if reference.numel() else 0.0
    floor = torch.finfo(q.dtype).eps * reference.abs().nan_to_num().max().item() if reference.numel() else 0.0
    return 2 * error + floor + 2.0 ** -22 * (v.abs().max().item() if v.numel() else 0.0)
