#include "server/open_streams.h"

namespace attnd {

void OpenStreams::Add(const std::shared_ptr<EndableStream>& stream) {
  bool ended = false;
  {
    MutexLock lock(mutex_);
    streams_[stream.get()] = stream;
    ended = ended_;
  }
  if (ended) stream->EndByServer();
}

void OpenStreams::Remove(const EndableStream* stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

std::int64_t OpenStreams::count() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(streams_.size());
}

void OpenStreams::EndAll() {
  // Ending a stream may remove it, on this thread: not under the mutex.
  std::vector<std::shared_ptr<EndableStream>> streams;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    for (const auto& [key, weak] : streams_) {
      if (auto stream = weak.lock(); stream != nullptr) streams.push_back(std::move(stream));
    }
  }
  for (const auto& stream : streams) stream->EndByServer();
}

}  // namespace attnd
