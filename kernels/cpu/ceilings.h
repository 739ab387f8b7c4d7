// Instruction loops behind MeasureCpuCeilings (attention_kernels.h), one set a SIMD target, each in
// a file compiled for that target. Call only what CpuTargetSupported allows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attnd::kernels {

// Runs `rounds` rounds of independent FP32 multiply-adds in registers; returns the FLOPs done.
double RunFp32Scalar(std::int64_t rounds);
double RunFp32Avx2(std::int64_t rounds);
double RunFp32Avx512(std::int64_t rounds);
// The same with BF16 dot products accumulated in FP32 (vdpbf16ps).
double RunBf16Avx512Bf16(std::int64_t rounds);

// Reads every byte of `data` (bytes: a multiple of kReadBlockBytes) once, in ascending order.
inline constexpr std::int64_t kReadBlockBytes = 4096;
void ReadScalar(const std::byte* data, std::int64_t bytes);
void ReadAvx2(const std::byte* data, std::int64_t bytes);

}  // namespace attnd::kernels
