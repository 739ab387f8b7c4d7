// The matrix libraries behind naive rows, which an installation may lack: OpenBLAS and oneDNN on
// the CPU, cuBLAS on a GPU.
#pragma once

#include "kernels/attention_kernels.h"

namespace attnd::kernels {

// Why naive rows of the device do not run here, in words for an operator; null where they do. Loads
// the library at the first call. Thread-safe. A GPU: the current device.
const char* NaiveFault(DeviceKind device);

}  // namespace attnd::kernels
