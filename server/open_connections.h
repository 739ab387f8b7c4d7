// How many connections are open whose descriptors somebody else closes, without a word. A
// descriptor is still the connection that was added while it is a socket with the same inode
// number.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace attnd {

// Not thread-safe.
class OpenConnections {
 public:
  // An open socket, before it is handed over. It counts until Sweep finds it closed.
  void Add(int descriptor);
  // Looks at every connection (0.2 us each) and forgets those that were closed.
  void Sweep();
  // Shuts down those that are still open, for reading and writing; their owner closes them.
  void ShutDown() const;
  std::int64_t count() const { return count_; }

 private:
  std::vector<ino_t> inode_of_descriptor_;  // 0: none
  std::int64_t count_ = 0;
};

}  // namespace attnd
