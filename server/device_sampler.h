// Reads a device's sensors at a steady pace on a thread of its own, so that neither a request nor a
// scrape waits for the driver. Thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "server/clock.h"
#include "server/device_sensors.h"

namespace attnd {

class DeviceSampler {
 public:
  // `device` becomes the label of the readings; `clock` outlives the sampler.
  DeviceSampler(const Clock& clock, std::string device, std::unique_ptr<DeviceSensors> sensors,
                std::chrono::milliseconds period = std::chrono::seconds(1));
  ~DeviceSampler();
  DeviceSampler(const DeviceSampler&) = delete;
  DeviceSampler& operator=(const DeviceSampler&) = delete;

  // Empty before the first reading, and where the last one is older than ten seconds: an old figure
  // would hide that the driver no longer answers.
  DeviceReading Latest() const;
  // Idempotent. Waits a second at most: a driver that never answers must not keep the process.
  void Stop();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state, std::chrono::milliseconds period);

  const std::shared_ptr<State> state_;  // outlives the sampler where a reading does not return
  std::thread thread_;
};

}  // namespace attnd
