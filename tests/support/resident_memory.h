// Resident memory of this process.
#pragma once

#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace attnd::testing {

// Bytes, after the allocator has given back what it can.
inline std::int64_t ResidentBytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace attnd::testing
