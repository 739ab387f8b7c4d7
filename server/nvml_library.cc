#include "server/nvml_library.h"

#include <dlfcn.h>

#include <memory>

namespace attnd {
namespace {

// The part of NVML's binary interface that is used here; stable since version 1 of the library.
using Device = void*;
using Result = int;  // 0: success
constexpr unsigned kSmClock = 1, kMemoryClock = 2;
constexpr unsigned kChipTemperature = 0;
constexpr unsigned kVersionBytes = 80;  // NVML's own bound
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;  // percent
};

class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    loaded_ = handle_ != nullptr && Call<Result()>("nvmlInit_v2");
  }
  ~Library() {
    if (loaded_) Call<Result()>("nvmlShutdown");
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool loaded() const { return loaded_; }

  // True where the function exists and succeeds.
  template <class Function, class... Arguments>
  bool Call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<Function*>(dlsym(handle_, name));
    return function != nullptr && function(arguments...) == 0;
  }

 private:
  void* handle_;
  bool loaded_ = false;
};

std::optional<int> Clock(const Library& nvml, const char* function, Device device, unsigned type) {
  unsigned megahertz = 0;
  if (!nvml.Call<Result(Device, unsigned, unsigned*)>(function, device, type, &megahertz)) {
    return std::nullopt;
  }
  return static_cast<int>(megahertz);
}

void ReadDevice(const Library& nvml, Device device, NvmlFacts& facts) {
  unsigned current = 0;
  unsigned pending = 0;
  if (nvml.Call<Result(Device, unsigned*, unsigned*)>("nvmlDeviceGetEccMode", device, &current,
                                                      &pending)) {
    facts.ecc = current != 0;
  }
  if (nvml.Call<Result(Device, unsigned*)>("nvmlDeviceGetPersistenceMode", device, &current)) {
    facts.persistence = current != 0;
  }
  unsigned milliwatts = 0;
  if (nvml.Call<Result(Device, unsigned*)>("nvmlDeviceGetEnforcedPowerLimit", device,
                                           &milliwatts)) {
    facts.power_limit_watts = milliwatts / 1000.0;
  }
  facts.sm_clock_mhz = Clock(nvml, "nvmlDeviceGetClockInfo", device, kSmClock);
  facts.max_sm_clock_mhz = Clock(nvml, "nvmlDeviceGetMaxClockInfo", device, kSmClock);
  facts.memory_clock_mhz = Clock(nvml, "nvmlDeviceGetClockInfo", device, kMemoryClock);
  facts.max_memory_clock_mhz = Clock(nvml, "nvmlDeviceGetMaxClockInfo", device, kMemoryClock);
  unsigned long long reasons = 0;
  if (nvml.Call<Result(Device, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons",
                                                     device, &reasons)) {
    facts.throttle_reasons = reasons;
  }
}

std::optional<double> Hertz(const Library& nvml, Device device, unsigned type) {
  const auto megahertz = Clock(nvml, "nvmlDeviceGetClockInfo", device, type);
  return megahertz ? std::optional(*megahertz * 1e6) : std::nullopt;
}

class NvmlSensors final : public DeviceSensors {
 public:
  explicit NvmlSensors(const std::string& library) : nvml_(library) {}

  bool Find(const std::string& uuid) {
    if (!nvml_.loaded()) return false;
    if (uuid.empty()) {
      return nvml_.Call<Result(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2", 0U, &device_);
    }
    return nvml_.Call<Result(const char*, Device*)>("nvmlDeviceGetHandleByUUID", uuid.c_str(),
                                                    &device_);
  }

  DeviceReading Read() override {
    DeviceReading reading;
    Memory memory{};
    if (nvml_.Call<Result(Device, Memory*)>("nvmlDeviceGetMemoryInfo", device_, &memory)) {
      reading.memory_used_bytes = static_cast<double>(memory.used);
      reading.memory_free_bytes = static_cast<double>(memory.free);
    }
    Utilization utilization{};
    if (nvml_.Call<Result(Device, Utilization*)>("nvmlDeviceGetUtilizationRates", device_,
                                                 &utilization)) {
      reading.compute_utilization = utilization.gpu / 100.0;
      reading.memory_utilization = utilization.memory / 100.0;
    }
    reading.sm_clock_hertz = Hertz(nvml_, device_, kSmClock);
    reading.memory_clock_hertz = Hertz(nvml_, device_, kMemoryClock);
    unsigned value = 0;
    if (nvml_.Call<Result(Device, unsigned*)>("nvmlDeviceGetPowerUsage", device_, &value)) {
      reading.power_watts = value / 1000.0;
    }
    if (nvml_.Call<Result(Device, unsigned, unsigned*)>("nvmlDeviceGetTemperature", device_,
                                                        kChipTemperature, &value)) {
      reading.temperature_celsius = value;
    }
    return reading;
  }

 private:
  Library nvml_;
  Device device_ = nullptr;
};

}  // namespace

NvmlFacts ReadNvmlFacts(const std::string& library, const std::string& uuid) {
  NvmlFacts facts;
  const Library nvml(library);
  if (!nvml.loaded()) return facts;
  char version[kVersionBytes + 1] = {};
  if (nvml.Call<Result(char*, unsigned)>("nvmlSystemGetDriverVersion", &version[0],
                                         kVersionBytes)) {
    facts.driver_version = version;
  }
  Device device = nullptr;
  if (!uuid.empty() &&
      nvml.Call<Result(const char*, Device*)>("nvmlDeviceGetHandleByUUID", uuid.c_str(), &device)) {
    ReadDevice(nvml, device, facts);
  }
  return facts;
}

std::unique_ptr<DeviceSensors> OpenNvmlSensors(const std::string& library,
                                               const std::string& uuid) {
  auto sensors = std::make_unique<NvmlSensors>(library);
  if (!sensors->Find(uuid)) return nullptr;
  return sensors;
}

}  // namespace attnd
