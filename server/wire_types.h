// The kernels' data types -> the wire's.
#pragma once

#include "attnd/v1/attention.pb.h"
#include "kernels/attention_params.h"

namespace attnd {

constexpr v1::DataType ToProtoType(kernels::DataType type) {
  switch (type) {
    case kernels::DataType::kFp32:
      return v1::DATA_TYPE_FP32;
    case kernels::DataType::kFp16:
      return v1::DATA_TYPE_FP16;
    case kernels::DataType::kBf16:
      return v1::DATA_TYPE_BF16;
    case kernels::DataType::kInt8:
      return v1::DATA_TYPE_INT8;
    case kernels::DataType::kFp8E4m3:
      return v1::DATA_TYPE_FP8_E4M3;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

}  // namespace attnd
