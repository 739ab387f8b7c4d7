// A peer implementation in a child process that stays alive over the whole run, so that its blocks
// and ours alternate. Lines over stdin and stdout:
//   -> {"prepare": {...case...}}   <- {"ready": true} or {"refused": "why"}; a peer on a device
//   also
//                                     tells the "extra_bytes" that its call takes at its peak
//   -> {"run": N}                  <- {"seconds": total of N calls}
//   -> {"release": true}           <- {"released": true}: its tensors are gone (device peers)
// The child prints {"peer": "name and version"} or {"error": "why it cannot run"} once at start.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/bench/bench_case.h"

namespace attnd::kernels::bench {

class BenchPeer {
 public:
  // Starts `python script arguments...`. Throws std::invalid_argument where there is no such Python
  // or it cannot run the script, std::runtime_error if it does not answer.
  BenchPeer(const std::string& python, const std::string& script,
            const std::vector<std::string>& arguments);
  ~BenchPeer();
  BenchPeer(const BenchPeer&) = delete;
  BenchPeer& operator=(const BenchPeer&) = delete;

  const std::string& name() const { return name_; }
  // False: the peer does not serve the case. graph_launches: calls of one graph replay on a device.
  bool Prepare(const BenchCase& bench_case, int graph_launches = 1);
  std::int64_t extra_bytes() const { return extra_bytes_; }  // of the case prepared last
  // Seconds that `calls` calls take.
  double Run(int calls);
  void Release();

 private:
  void Greet(const std::string& python);
  void End();  // closes the child's pipes and waits for it
  std::string Ask(const std::string& line);
  std::string ReadLine();

  pid_t child_ = -1;
  std::FILE* to_child_ = nullptr;
  std::FILE* from_child_ = nullptr;
  std::string name_;
  std::int64_t extra_bytes_ = 0;
};

}  // namespace attnd::kernels::bench
