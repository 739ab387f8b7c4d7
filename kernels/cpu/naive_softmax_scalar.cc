#include "kernels/cpu/naive_softmax_body.h"

namespace attnd::kernels {

NaivePasses NaivePassesScalar() { return {&SoftmaxRow, &WidenRow}; }

}  // namespace attnd::kernels
