// How the process sets glibc's allocator. Replies and staging buffers of many MiB come and go with
// every request: it would map, fault and unmap each of them above 32 MiB (0.7 GB/s instead of 2.4)
// and give memory back to the system at every pause. freed_memory.h gives it back in quiet times.
#pragma once

#include <malloc.h>

namespace attnd {

inline constexpr int kMmapThresholdBytes = 32 << 20;
inline constexpr int kTrimThresholdBytes = 128 << 20;
// Received messages are spread over buffers of every polling thread; an arena for each of them kept
// up to four times the bytes that were alive.
inline constexpr int kMaxArenas = 1;

inline void SetUpAllocator() {
  mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes);
  mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
  mallopt(M_ARENA_MAX, kMaxArenas);
}

}  // namespace attnd
