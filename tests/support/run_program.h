// Runs a program and collects what it prints.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/temporary_path.h"

namespace attnd {

struct ProgramResult {
  int exit_code = -1;
  std::string output, errors;
};

// `arguments` as a shell would read them.
inline ProgramResult RunProgram(const std::string& program, const std::string& arguments) {
  const std::string out = TemporaryPath("stdout");
  const std::string err = TemporaryPath("stderr");
  const int status = std::system((program + " " + arguments + " >" + out + " 2>" + err).c_str());
  const auto read = [](const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
}

}  // namespace attnd
