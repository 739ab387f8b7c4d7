#include "kernels/cpu/decode_loop.h"

namespace attnd::kernels {

void DecodeSegmentAvx2(const DecodeSegment& segment, DecodeScratch& scratch) {
  switch (segment.params->kv_data_type) {
    case DataType::kFp32:
      SegmentLoop<FmaArithmetic<float>>(segment, scratch).Run();
      return;
    case DataType::kFp16:
      SegmentLoop<FmaArithmetic<Fp16>>(segment, scratch).Run();
      return;
    default:
      SegmentLoop<FmaArithmetic<Bf16>>(segment, scratch).Run();
      return;
  }
}

}  // namespace attnd::kernels
