// Streams that the server must be able to end by itself, so that no client that holds one open can
// hold up a shutdown. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/mutex.h"

namespace attnd {

class EndableStream {
 public:
  virtual ~EndableStream() = default;
  // Reads nothing more, writes what is due, then finishes the call. Called on any thread, possibly
  // on a stream that ends by itself just then.
  virtual void EndByServer() = 0;
};

class OpenStreams {
 public:
  // A stream that comes after EndAll is ended at once.
  void Add(const std::shared_ptr<EndableStream>& stream);
  void Remove(const EndableStream* stream);
  std::int64_t count() const;
  void EndAll();

 private:
  mutable Mutex mutex_;
  std::unordered_map<const EndableStream*, std::weak_ptr<EndableStream>> streams_
      ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnd
