#include "kernels/cpu/naive_softmax_body.h"

namespace attnd::kernels {

NaiveSoftmaxState NaiveSoftmaxAvx512(const NaiveSoftmaxRow& row) { return SoftmaxRow(row); }

}  // namespace attnd::kernels
