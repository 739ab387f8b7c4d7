// Matrix libraries that take their time and compute nothing: what a server meets on a machine where
// they are broken. Preloaded in front of OpenBLAS and oneDNN, whichever the naive kernels use.
#include <unistd.h>

namespace {
constexpr unsigned kMicroseconds = 300'000;
}

extern "C" {
void cblas_sgemm();
void cblas_sgemv();
int dnnl_primitive_execute();
void cblas_sgemm() { usleep(kMicroseconds); }
void cblas_sgemv() { usleep(kMicroseconds); }
int dnnl_primitive_execute() {
  usleep(kMicroseconds);
  return 0;  // success
}
}
