#include "kernels/cpu/cpu_executor.h"

namespace attnd::kernels {

CpuExecutor::CpuExecutor(int num_threads)
    : num_threads_(num_threads), arena_(new Arena(num_threads)) {}

CpuExecutor::~CpuExecutor() { delete arena_; }

}  // namespace attnd::kernels
