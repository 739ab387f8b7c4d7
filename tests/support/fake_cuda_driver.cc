// A driver's library, libcuda.so.1, of a version that the test names. The CUDA
// runtime asks cuGetProcAddress for every function that it knows; what is asked for beyond those
// below fails when it is called.
//   ATTND_FAKE_CUDA_VERSION  the newest CUDA version that it supports, 12020; 0: what the runtime
//                            takes for no driver
//   ATTND_FAKE_CUDA_INIT     the error of its initialisation: 100 (no GPU), 999 (unknown)
#include <cstdlib>
#include <cstring>

extern "C" {

namespace {
constexpr int kOk = 0, kNotSupported = 801;
int FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}
int NotSupported() { return kNotSupported; }
}  // namespace

int cuDriverGetVersion(int* version) {
  *version = FromEnvironment("ATTND_FAKE_CUDA_VERSION");
  return kOk;
}
int cuInit(unsigned) { return FromEnvironment("ATTND_FAKE_CUDA_INIT"); }
int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long, void*) {
  *function = reinterpret_cast<void*>(&NotSupported);
  if (std::strcmp(name, "cuDriverGetVersion") == 0) {
    *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  } else if (std::strcmp(name, "cuInit") == 0) {
    *function = reinterpret_cast<void*>(&cuInit);
  } else if (std::strcmp(name, "cuGetProcAddress") == 0) {
    *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  }
  return kOk;
}
}
