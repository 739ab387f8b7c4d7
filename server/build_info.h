// What this binary was built from.
#pragma once

#include <string>

namespace attnd {

struct BuildInfo {
  std::string version;  // of the project, "0.1.0"
  std::string
      commit;  // abbreviated, "-dirty" behind it with local changes; "unknown" outside of git
  std::string compiler;    // "GNU 12.2.0"
  std::string cpu_target;  // SIMD target in use, "avx512_bf16"
};

// `cpu_target` is known only at run time; empty where it does not matter.
BuildInfo CurrentBuild(std::string cpu_target = {});

}  // namespace attnd
