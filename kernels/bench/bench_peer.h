// A peer implementation in a child process that stays alive over the whole run, so that its blocks
// and ours alternate. Lines over stdin and stdout:
//   -> {"prepare": {...case...}}   <- {"ready": true} or {"refused": "why"}
//   -> {"run": N}                  <- {"seconds": total of N calls}
// The child prints {"peer": "name and version"} once at start.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>

#include "kernels/bench/bench_case.h"

namespace attnd::kernels::bench {

class BenchPeer {
 public:
  // Starts `python script --threads N`. Throws std::runtime_error if it does not answer.
  BenchPeer(const std::string& python, const std::string& script, int num_threads);
  ~BenchPeer();
  BenchPeer(const BenchPeer&) = delete;
  BenchPeer& operator=(const BenchPeer&) = delete;

  const std::string& name() const { return name_; }
  // False: the peer does not serve the case.
  bool Prepare(const BenchCase& bench_case);
  // Seconds that `calls` calls take.
  double Run(int calls);

 private:
  std::string Ask(const std::string& line);
  std::string ReadLine();

  pid_t child_ = -1;
  std::FILE* to_child_ = nullptr;
  std::FILE* from_child_ = nullptr;
  std::string name_;
};

}  // namespace attnd::kernels::bench
