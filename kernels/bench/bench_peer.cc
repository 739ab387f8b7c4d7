#include "kernels/bench/bench_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <nlohmann/json.hpp>
#include <stdexcept>

extern char** environ;

namespace attnd::kernels::bench {
namespace {

using Json = nlohmann::json;

}  // namespace

BenchPeer::BenchPeer(const std::string& python, const std::string& script,
                     const std::vector<std::string>& arguments) {
  std::signal(SIGPIPE, SIG_IGN);  // a child that died shows as a failed read
  std::array<int, 2> input{};
  std::array<int, 2> output{};
  // Not inherited: a peer that held the write end of another one's input would keep it from ending.
  if (pipe2(input.data(), O_CLOEXEC) != 0 || pipe2(output.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("cannot make pipes for the peer");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  std::vector<std::string> words = {python, script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int failed =
      posix_spawnp(&child_, python.c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  to_child_ = fdopen(input[1], "w");
  from_child_ = fdopen(output[0], "r");
  if (failed != 0) child_ = -1;
  try {
    if (failed != 0) {
      throw std::invalid_argument("cannot start the peer's Python '" + python + "'");
    }
    Greet(python);
  } catch (...) {
    End();
    throw;
  }
}

void BenchPeer::Greet(const std::string& python) {
  const Json hello = Json::parse(ReadLine());
  if (hello.contains("error")) {
    throw std::invalid_argument("the peer cannot run under '" + python +
                                "': " + hello.at("error").get<std::string>());
  }
  name_ = hello.at("peer").get<std::string>();
}

BenchPeer::~BenchPeer() { End(); }

void BenchPeer::End() {
  std::fclose(to_child_);  // end of input ends the child
  std::fclose(from_child_);
  if (child_ > 0) waitpid(child_, nullptr, 0);
}

std::string BenchPeer::ReadLine() {
  std::string line;
  for (int c = std::fgetc(from_child_); c != '\n'; c = std::fgetc(from_child_)) {
    if (c == EOF) throw std::runtime_error("the peer ended without an answer");
    line.push_back(static_cast<char>(c));
  }
  return line;
}

std::string BenchPeer::Ask(const std::string& line) {
  std::fputs((line + "\n").c_str(), to_child_);
  std::fflush(to_child_);
  return ReadLine();
}

bool BenchPeer::Prepare(const BenchCase& bench_case, int graph_launches) {
  const Json shape = {{"sequences", bench_case.num_sequences},
                      {"query_length", bench_case.query_length},
                      {"kv_length", bench_case.kv_length},
                      {"num_heads", bench_case.num_heads},
                      {"num_kv_heads", bench_case.num_kv_heads},
                      {"head_dim", bench_case.head_dim},
                      {"causal", bench_case.causal},
                      {"window_left", bench_case.window_left},
                      {"dtype", TypeName(bench_case.data_type)},
                      {"graph_launches", graph_launches}};
  const Json answer = Json::parse(Ask(Json{{"prepare", shape}}.dump()));
  extra_bytes_ = answer.value("extra_bytes", std::int64_t{0});
  return answer.contains("ready");
}

double BenchPeer::Run(int calls) {
  return Json::parse(Ask(Json{{"run", calls}}.dump())).at("seconds").get<double>();
}

void BenchPeer::Release() { Ask(Json{{"release", true}}.dump()); }

}  // namespace attnd::kernels::bench
