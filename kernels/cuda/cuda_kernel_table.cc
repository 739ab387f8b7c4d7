#include "kernels/cuda/cuda_kernel_table.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>

#include "kernels/any/decode_dot.h"
#include "kernels/any/prefill_simt.h"
#include "kernels/cuda/cuda_rows.h"
#include "kernels/naive/cublas_library.h"
#include "kernels/naive/naive.h"
#include "kernels/sm75/decode_mma.h"
#include "kernels/sm75/prefill.h"
#include "kernels/sm80/decode_mma.h"
#include "kernels/sm80/prefill.h"

namespace attnd::kernels {
namespace {

constexpr std::uint32_t kPlainFeatures =
    kFeatureCausal | kFeatureWindow | kFeatureLse | kFeaturePartial | kFeaturePaged;
constexpr std::uint32_t kAllFeatures =
    kPlainFeatures | kFeatureSoftCap | kFeatureAlibi | kFeatureSinks | kFeatureBias;
// PTX rows run on every newer card too.
constexpr int kLastCc = 999;

template <class Element>
constexpr DataType kTypeOf = DataType::kFp16;
template <>
constexpr DataType kTypeOf<__nv_bfloat16> = DataType::kBf16;
template <>
constexpr DataType kTypeOf<float> = DataType::kFp32;

constexpr std::uint8_t kWideAll = kWideQuery | kWideKeys | kWideOutput;

template <class Element, int kHeadDim, sm80::PrefillVariant kVariant>
constexpr CudaKernelRow Sm80Prefill(const char* name) {
  return {name,
          Operation::kPrefill,
          80,
          kLastCc,
          TypeBit(kTypeOf<Element>),
          kHeadDim,
          kVariant == sm80::PrefillVariant::kAll ? kAllFeatures : kPlainFeatures,
          kWideAll,
          sm80::PrefillBlockQ(kHeadDim),
          &sm80::PreparePrefill<Element, kHeadDim, kVariant>,
          &sm80::LaunchPrefill<Element, kHeadDim, kVariant>,
          nullptr};
}

template <int kHeadDim, sm75::PrefillVariant kVariant>
constexpr CudaKernelRow Sm75Prefill(const char* name) {
  return {name,
          Operation::kPrefill,
          75,
          kLastCc,
          TypeBit(DataType::kFp16),
          kHeadDim,
          kVariant == sm75::PrefillVariant::kAll ? kAllFeatures : kPlainFeatures,
          kWideAll,
          sm75::PrefillBlockQ(kHeadDim),
          &sm75::PreparePrefill<__half, kHeadDim, kVariant>,
          &sm75::LaunchPrefill<__half, kHeadDim, kVariant>,
          nullptr};
}

constexpr CudaKernelRow Decode(const char* name, int first_cc, DataType type, int head_dim,
                               std::uint8_t wide, int block_rows,
                               cudaError_t (*prepare)(cudaFuncAttributes*), CudaLaunch launch) {
  return {name, Operation::kDecode, first_cc, kLastCc, TypeBit(type), head_dim, kAllFeatures,
          wide, block_rows,         prepare,  launch,  nullptr};
}

template <class Element, int kHeadDim>
constexpr CudaKernelRow Sm80Decode(const char* name) {
  return Decode(name, 80, kTypeOf<Element>, kHeadDim, kWideQuery | kWideKeys,
                sm80::kDecodeBlockRows, &sm80::PrepareDecodeMma<Element, kHeadDim>,
                &sm80::LaunchDecodeMma<Element, kHeadDim>);
}

template <int kHeadDim>
constexpr CudaKernelRow Sm75Decode(const char* name) {
  return Decode(name, 75, DataType::kFp16, kHeadDim, kWideQuery | kWideKeys, sm75::kDecodeBlockRows,
                &sm75::PrepareDecodeMma<__half, kHeadDim>,
                &sm75::LaunchDecodeMma<__half, kHeadDim>);
}

template <class Element, int kHeadDim>
constexpr CudaKernelRow DecodeDot(const char* name) {
  return Decode(name, 75, kTypeOf<Element>, kHeadDim, kWideKeys, any::kDotBlockRows,
                &any::PrepareDecodeDot<Element, kHeadDim>,
                &any::LaunchDecodeDot<Element, kHeadDim>);
}

template <class Element, int kHeadDim>
constexpr CudaKernelRow Exact(const char* name) {
  return {name,
          Operation::kExact,
          75,
          kLastCc,
          TypeBit(kTypeOf<Element>),
          kHeadDim,
          kAllFeatures,
          0,
          any::SimtBlockQ(kHeadDim),
          &any::PreparePrefillSimt<Element, kHeadDim>,
          &any::LaunchPrefillSimt<Element, kHeadDim>,
          nullptr};
}

cudaError_t PrepareNothing(cudaFuncAttributes* /*attributes*/) { return cudaSuccess; }
cudaError_t PrepareNaive(cudaFuncAttributes* /*attributes*/) {
  return naive::CublasFault() == nullptr ? cudaSuccess : cudaErrorNotSupported;
}

template <class Element>
constexpr CudaKernelRow Naive(const char* name) {
  return {name,
          Operation::kNaive,
          75,
          kLastCc,
          TypeBit(kTypeOf<Element>),
          kMaxHeadDim,
          kAllFeatures,
          0,
          0,
          &PrepareNaive,
          nullptr,
          &naive::LaunchNaive<Element>};
}

constexpr CudaKernelRow Upkeep(const char* name, Operation operation, std::uint32_t features) {
  return {name,
          operation,
          75,
          kLastCc,
          TypeBit(DataType::kFp32) | TypeBit(DataType::kFp16) | TypeBit(DataType::kBf16),
          kMaxHeadDim,
          features,
          0,
          0,
          &PrepareNothing,
          nullptr,
          nullptr};
}

using P80 = sm80::PrefillVariant;
using P75 = sm75::PrefillVariant;
using Bf16 = __nv_bfloat16;

// Newest architecture first, and inside it the row with the fewest features first: the first row
// that serves a call is the fastest.
constexpr std::array kTable = {
    Sm80Prefill<__half, 64, P80::kPlain>("sm80/prefill_fp16_d64"),
    Sm80Prefill<__half, 128, P80::kPlain>("sm80/prefill_fp16_d128"),
    Sm80Prefill<__half, 256, P80::kPlain>("sm80/prefill_fp16_d256"),
    Sm80Prefill<Bf16, 64, P80::kPlain>("sm80/prefill_bf16_d64"),
    Sm80Prefill<Bf16, 128, P80::kPlain>("sm80/prefill_bf16_d128"),
    Sm80Prefill<Bf16, 256, P80::kPlain>("sm80/prefill_bf16_d256"),
    Sm80Prefill<__half, 64, P80::kAll>("sm80/prefill_fp16_d64_all"),
    Sm80Prefill<__half, 128, P80::kAll>("sm80/prefill_fp16_d128_all"),
    Sm80Prefill<__half, 256, P80::kAll>("sm80/prefill_fp16_d256_all"),
    Sm80Prefill<Bf16, 64, P80::kAll>("sm80/prefill_bf16_d64_all"),
    Sm80Prefill<Bf16, 128, P80::kAll>("sm80/prefill_bf16_d128_all"),
    Sm80Prefill<Bf16, 256, P80::kAll>("sm80/prefill_bf16_d256_all"),
    Sm80Decode<__half, 64>("sm80/decode_mma_fp16_d64"),
    Sm80Decode<__half, 128>("sm80/decode_mma_fp16_d128"),
    Sm80Decode<__half, 256>("sm80/decode_mma_fp16_d256"),
    Sm80Decode<Bf16, 64>("sm80/decode_mma_bf16_d64"),
    Sm80Decode<Bf16, 128>("sm80/decode_mma_bf16_d128"),
    Sm80Decode<Bf16, 256>("sm80/decode_mma_bf16_d256"),
    Sm75Prefill<64, P75::kPlain>("sm75/prefill_fp16_d64"),
    Sm75Prefill<128, P75::kPlain>("sm75/prefill_fp16_d128"),
    Sm75Prefill<256, P75::kPlain>("sm75/prefill_fp16_d256"),
    Sm75Prefill<64, P75::kAll>("sm75/prefill_fp16_d64_all"),
    Sm75Prefill<128, P75::kAll>("sm75/prefill_fp16_d128_all"),
    Sm75Prefill<256, P75::kAll>("sm75/prefill_fp16_d256_all"),
    Sm75Decode<64>("sm75/decode_mma_fp16_d64"),
    Sm75Decode<128>("sm75/decode_mma_fp16_d128"),
    Sm75Decode<256>("sm75/decode_mma_fp16_d256"),
    DecodeDot<float, 64>("any/decode_dot_fp32_d64"),
    DecodeDot<float, 128>("any/decode_dot_fp32_d128"),
    DecodeDot<float, 256>("any/decode_dot_fp32_d256"),
    DecodeDot<Bf16, 64>("any/decode_dot_bf16_d64"),
    DecodeDot<Bf16, 128>("any/decode_dot_bf16_d128"),
    DecodeDot<Bf16, 256>("any/decode_dot_bf16_d256"),
    Exact<float, 64>("any/prefill_simt_fp32_d64"),
    Exact<float, 128>("any/prefill_simt_fp32_d128"),
    Exact<float, 256>("any/prefill_simt_fp32_d256"),
    Exact<__half, 64>("any/prefill_simt_fp16_d64"),
    Exact<__half, 128>("any/prefill_simt_fp16_d128"),
    Exact<__half, 256>("any/prefill_simt_fp16_d256"),
    Exact<Bf16, 64>("any/prefill_simt_bf16_d64"),
    Exact<Bf16, 128>("any/prefill_simt_bf16_d128"),
    Exact<Bf16, 256>("any/prefill_simt_bf16_d256"),
    Naive<float>("naive/fp32"),
    Naive<__half>("naive/fp16"),
    Naive<Bf16>("naive/bf16"),
    Upkeep("any/append", Operation::kAppend, kFeaturePaged | kFeatureRope),
    Upkeep("any/merge_states", Operation::kMergeStates, kFeatureSinks | kFeatureLse),
};

constexpr auto kPublicTable = [] {
  std::array<KernelRow, kTable.size()> rows{};
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    const CudaKernelRow& row = kTable[i];
    rows[i] = {row.name,         row.operation,  DeviceKind::kCuda, row.first_cc, row.last_cc,
               CpuTarget::kAuto, row.data_types, row.data_types,    row.head_dim, row.features,
               nullptr};
  }
  return rows;
}();

}  // namespace

std::span<const CudaKernelRow> CudaKernelTable() { return kTable; }

std::span<const KernelRow> CudaRows() { return kPublicTable; }

}  // namespace attnd::kernels
