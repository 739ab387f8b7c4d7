// NumPy .npy files, versions 1 to 3: little-endian float32 ('<f4') and float16 ('<f2') in C order.
//
// NumPy has no BF16. Such arrays are written as '|V2' (two opaque bytes an element, what ml_dtypes
// writes too; `array.view(ml_dtypes.bfloat16)` reads them) and read from '|V2', '<V2' and '<u2'
// (bit patterns, as from `tensor.view(torch.uint16).numpy()`).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/file_bytes.h"
#include "client/tensor.h"

namespace attnd::client {

// INVALID_ARGUMENT: malformed, truncated, trailing bytes, Fortran order, another element type.
// The tensor shares the file's memory.
absl::StatusOr<Tensor> ParseNpy(const FileBytes& file);
absl::StatusOr<Tensor> ReadNpy(const std::string& path);

absl::Status WriteNpy(const std::string& path, const Tensor& tensor);

}  // namespace attnd::client
