// A management library that knows one GPU, "GPU-fake", for tests; built as a shared object.
#include <cstring>

extern "C" {

namespace {
constexpr int kOk = 0, kNotSupported = 3, kNotFound = 6;
int g_device = 0;
int g_inits = 0;
}  // namespace

int nvmlInit_v2() {
  ++g_inits;
  return kOk;
}
int nvmlShutdown() { return --g_inits == 0 ? kOk : 1; }
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  std::strncpy(version, "580.1.2", length);
  return kOk;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-fake") != 0) return kNotFound;
  *device = &g_device;
  return kOk;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index != 0) return kNotFound;
  *device = &g_device;
  return kOk;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  if (device != &g_device) return kNotFound;
  total_free_used[0] = 16ULL << 30;
  total_free_used[1] = 5ULL << 30;
  total_free_used[2] = 11ULL << 30;
  return kOk;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* gpu_memory) {
  gpu_memory[0] = 75;
  gpu_memory[1] = 40;
  return kOk;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 65500;
  return kOk;
}
int nvmlDeviceGetTemperature(void*, unsigned sensor, unsigned* celsius) {
  *celsius = sensor == 0 ? 61 : 0;
  return kOk;
}
// As GeForce cards answer.
int nvmlDeviceGetEccMode(void*, unsigned*, unsigned*) { return kNotSupported; }
int nvmlDeviceGetPersistenceMode(void*, unsigned* mode) {
  *mode = 1;
  return kOk;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  if (device != &g_device) return kNotFound;
  *milliwatts = 70500;
  return kOk;
}
int nvmlDeviceGetClockInfo(void*, unsigned type, unsigned* megahertz) {
  *megahertz = type == 1 ? 585 : 5000;
  return kOk;
}
int nvmlDeviceGetMaxClockInfo(void*, unsigned type, unsigned* megahertz) {
  *megahertz = type == 1 ? 1590 : 5001;
  return kOk;
}
// nvmlDeviceGetCurrentClocksThrottleReasons is missing, as in a library of another age.
}
