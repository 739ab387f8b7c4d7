#include "server/device_sampler.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"

namespace attnd {
namespace {

constexpr std::chrono::seconds kStaleAfter{10};
constexpr std::chrono::seconds kStopLimit{1};

}  // namespace

struct DeviceSampler::State {
  State(const Clock& server_clock, std::string label, std::unique_ptr<DeviceSensors> device_sensors)
      : clock(server_clock), device(std::move(label)), sensors(std::move(device_sensors)) {}

  const Clock& clock;  // not to be used once stop is set: it may be gone
  const std::string device;
  const std::unique_ptr<DeviceSensors> sensors;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  DeviceReading latest ABSL_GUARDED_BY(mutex);
  Clock::TimePoint read_at ABSL_GUARDED_BY(mutex);
};

DeviceSampler::DeviceSampler(const Clock& clock, std::string device,
                             std::unique_ptr<DeviceSensors> sensors,
                             std::chrono::milliseconds period)
    : state_(std::make_shared<State>(clock, std::move(device), std::move(sensors))),
      thread_([state = state_, period] { Run(state, period); }) {}

DeviceSampler::~DeviceSampler() { Stop(); }

DeviceReading DeviceSampler::Latest() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->latest.device.empty()) return {};
  if (state_->clock.Now() - state_->read_at > kStaleAfter) return {};
  return state_->latest;
}

void DeviceSampler::Stop() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, kStopLimit, [this] { return state_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void DeviceSampler::Run(const std::shared_ptr<State>& state, std::chrono::milliseconds period) {
  bool stop = false;
  while (!stop) {
    DeviceReading reading = state->sensors->Read();
    reading.device = state->device;
    std::unique_lock lock(state->mutex);
    if (!state->stop) {
      state->latest = std::move(reading);
      state->read_at = state->clock.Now();
    }
    state->changed.wait_for(lock, period, [&state] { return state->stop; });
    stop = state->stop;
  }
  const std::lock_guard lock(state->mutex);
  state->ended = true;
  state->changed.notify_all();
}

}  // namespace attnd
