// What the tiles of a prefill launch read of K and V from device memory, beyond reading each key
// once: pure host code.
#pragma once

#include "kernels/cuda/prefill_plan.h"

namespace attnd::kernels {

// Bytes of K and V that come from device memory again. CTAs run in grid order, `resident_ctas` at a
// time: those that share a KV head read it together, and later ones find it in an L2 of
// `cache_bytes` if what has passed through it since then, q and o too, is less than that. Around
// that number part of it is found: the L2 hashes addresses, and CTAs do not keep in step.
// `params.sequences` is host memory.
double RereadKvBytes(const AttentionParams& params, const PrefillPlan& plan, int block_rows,
                     int resident_ctas, double cache_bytes);

// Bytes of K and V that all CTAs together ask for: what device memory would bring without an L2.
double AskedKvBytes(const AttentionParams& params, const PrefillPlan& plan, int block_rows);

}  // namespace attnd::kernels
