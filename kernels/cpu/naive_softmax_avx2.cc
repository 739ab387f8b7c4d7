#include "kernels/cpu/naive_softmax_body.h"

namespace attnd::kernels {

NaivePasses NaivePassesAvx2() { return {&SoftmaxRow, &WidenRow}; }

}  // namespace attnd::kernels
