#include "server/server_config.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/build_info.h"
#include "server/server_flags.h"

namespace attnd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<ParsedCommandLine> Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"attnd"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseServerCommandLine(static_cast<int>(argv.size()), argv.data());
}

std::string ErrorOf(const std::vector<std::string>& arguments) {
  const auto parsed = Parse(arguments);
  EXPECT_FALSE(parsed.ok());
  return std::string(parsed.status().message());
}

class ConfigFileTest : public ::testing::Test {
 protected:
  ~ConfigFileTest() override { std::filesystem::remove(path_); }
  std::string Write(const std::string& text) {
    std::ofstream(path_) << text;
    return "--config=" + path_;
  }
  // One file a test: tests of this suite run at the same time.
  const std::string path_ = ::testing::TempDir() + "attnd_config_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".yaml";
};

TEST(ServerConfigTest, DefaultsAreValid) {
  EXPECT_TRUE(ValidateServerConfig(ServerConfig()).ok());
  const auto parsed = Parse({});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->exit_now);
  EXPECT_EQ(parsed->config.listen, "127.0.0.1:8001");
}

// Stands for a value of any type where the members of an aggregate are counted.
struct AnyValue {
  template <typename T>
  operator T() const;  // only named, never called
};

// Members of an aggregate: as many values as its braces take.
template <typename Aggregate, typename... Values>
constexpr std::size_t NumMembers() {
  if constexpr (requires { Aggregate{Values{}..., AnyValue{}}; }) {
    return NumMembers<Aggregate, Values..., AnyValue>();
  } else {
    return sizeof...(Values);
  }
}

TEST(ServerConfigTest, EveryFieldHasAFlagOfItsOwn) {
  const auto flags = ServerFlags();
  EXPECT_EQ(flags.size(), NumMembers<ServerConfig>()) << "a field without a row in server_flags.cc";
  for (std::size_t i = 0; i < flags.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(flags[i].field == flags[j].field) << flags[i].name << ", " << flags[j].name;
      EXPECT_STRNE(flags[i].name, flags[j].name);
    }
  }
}

TEST(ServerConfigTest, EveryFlagReadsTheTextThatItWrites) {
  const ServerConfig defaults;
  for (const ServerFlag& flag : ServerFlags()) {
    ServerConfig config;
    EXPECT_TRUE(SetServerFlag(flag, ServerFlagText(flag, defaults), config).ok()) << flag.name;
    EXPECT_EQ(ServerFlagText(flag, config), ServerFlagText(flag, defaults)) << flag.name;
  }
}

TEST(ServerConfigTest, ReadsEveryKindOfFlag) {
  const auto parsed =
      Parse({"--listen=unix:/tmp/attnd.sock", "--max_queue_requests=17", "--max_queue_bytes=4GiB",
             "--lame_duck", "250ms", "--batch_invariant", "--allow_comparison=false",
             "--cpu_target=scalar", "--peers=a=10.0.0.1:1", "--peers=b=10.0.0.2:1,c=10.0.0.3:1",
             "--log_format=json"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const ServerConfig& config = parsed->config;
  EXPECT_EQ(config.listen, "unix:/tmp/attnd.sock");
  EXPECT_EQ(config.max_queue_requests, 17);
  EXPECT_EQ(config.max_queue_bytes, std::int64_t{4} << 30);
  EXPECT_EQ(config.lame_duck, Milliseconds(250));
  EXPECT_TRUE(config.batch_invariant);
  EXPECT_FALSE(config.allow_comparison);
  EXPECT_EQ(config.cpu_target, kernels::CpuTarget::kScalar);
  EXPECT_EQ(config.peers,
            (std::vector<std::string>{"a=10.0.0.1:1", "b=10.0.0.2:1", "c=10.0.0.3:1"}));
  EXPECT_EQ(config.log_format, "json");
}

TEST(ServerConfigTest, TheLastOfEqualFlagsCounts) {
  const auto parsed =
      Parse({"--max_steps=1", "--batch_invariant", "--max_steps=2", "--batch_invariant=false"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.max_steps, 2);
  EXPECT_FALSE(parsed->config.batch_invariant);
}

TEST(ServerConfigTest, NamesAnUnknownFlag) {
  EXPECT_THAT(ErrorOf({"--no_such_flag=1"}), HasSubstr("--no_such_flag"));
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("stray"));
  EXPECT_THAT(ErrorOf({"--listen"}), HasSubstr("--listen"));
}

TEST(ServerConfigTest, NamesFlagGotAndNeedOfABadValue) {
  EXPECT_EQ(ErrorOf({"--max_queue_requests=0"}),
            "--max_queue_requests: got '0', need 1 to 10000000");
  EXPECT_EQ(ErrorOf({"--max_queue_requests=many"}),
            "--max_queue_requests: got 'many', need a whole number");
  EXPECT_EQ(ErrorOf({"--lame_duck=5"}),
            "--lame_duck: got '5', need a duration with its unit, like 250ms, 5s, 10m or 1h");
  EXPECT_EQ(ErrorOf({"--lame_duck=2h"}), "--lame_duck: got '2h', need 0 to 10m");
  EXPECT_EQ(ErrorOf({"--max_message_bytes=1KiB"}),
            "--max_message_bytes: got '1KiB', need 64KiB to 2147483647");
  EXPECT_EQ(ErrorOf({"--log_level=loud"}),
            "--log_level: got 'loud', need one of trace, debug, info, warn, error");
  EXPECT_EQ(ErrorOf({"--batch_invariant=maybe"}),
            "--batch_invariant: got 'maybe', need true or false");
  EXPECT_THAT(ErrorOf({"--cpu_target=mmx"}), HasSubstr("need one of auto, scalar"));
}

TEST(ServerConfigTest, AFlagWithoutAValueSaysSo) {
  EXPECT_EQ(ErrorOf({"--threads="}), "--threads: got no value, need one");
  EXPECT_EQ(ErrorOf({"--threads"}), "--threads: got no value, need one");
  EXPECT_EQ(ErrorOf({"--server_name="}), "--server_name: got no value, need one");
}

TEST(ServerConfigTest, DevicesAreNamedByKindAndNumber) {
  for (const char* device : {"auto", "cpu", "cuda:0", "cuda:12"}) {
    EXPECT_TRUE(Parse({absl::StrCat("--device=", device)}).ok()) << device;
  }
  for (const char* device : {"cuda", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:1000", "gpu"}) {
    EXPECT_EQ(ErrorOf({absl::StrCat("--device=", device)}),
              absl::StrCat("--device: got '", device, "', need one of auto, cpu, cuda:N"));
  }
  EXPECT_EQ(ErrorOf({"--kernel_arch=sm70"}),
            "--kernel_arch: got 'sm70', need one of auto, sm75, sm80, sm90");
}

// A field that is out of range in code must not pass either.
TEST(ServerConfigTest, ChecksTheRangeOfEveryNumber) {
  int num_ranged = 0;
  for (const ServerFlag& flag : ServerFlags()) {
    if (flag.min == 0 && flag.max == 0) continue;
    ++num_ranged;
    for (const std::int64_t bad : {flag.min - 1, flag.max + 1}) {
      ServerConfig config;
      if (const auto* field = std::get_if<int ServerConfig::*>(&flag.field)) {
        config.** field = static_cast<int>(bad);
      } else if (const auto* wide = std::get_if<std::int64_t ServerConfig::*>(&flag.field)) {
        config.** wide = bad;
      } else {
        config.*std::get<Milliseconds ServerConfig::*>(flag.field) = Milliseconds(bad);
      }
      const absl::Status status = ValidateServerConfig(config);
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("--") + flag.name + ": got"))
          << bad;
    }
  }
  EXPECT_GT(num_ranged, 20);
}

TEST(ServerConfigTest, ChecksRelations) {
  EXPECT_THAT(ErrorOf({"--admin_listen=127.0.0.1:8001"}), HasSubstr("--admin_listen"));
  EXPECT_THAT(ErrorOf({"--listen=0.0.0.0:8002"}), HasSubstr("another port than that of --listen"));
  EXPECT_TRUE(Parse({"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0"}).ok());
  EXPECT_THAT(ErrorOf({"--admin_listen=unix:/tmp/x"}), HasSubstr("need host:port"));
  EXPECT_THAT(ErrorOf({"--page_tokens=24"}), HasSubstr("need 0 or a power of two"));
  EXPECT_THAT(ErrorOf({"--cache_bytes=1"}),
              HasSubstr("cache_bytes: got '1', need 0 or at least 2MiB"));
  EXPECT_THAT(ErrorOf({"--host_cache_bytes=1MiB"}),
              HasSubstr("host_cache_bytes: got '1MiB', need 0 or at least 2MiB"));
  EXPECT_THAT(ErrorOf({"--default_lease=2h"}), HasSubstr("at most --max_lease, 1h"));
  EXPECT_THAT(ErrorOf({"--max_queue_bytes=128MiB"}),
              HasSubstr("at least --max_message_bytes, 256MiB"));
  EXPECT_THAT(ErrorOf({"--stop_limit=1s"}), HasSubstr("more than --lame_duck, 1s"));
  EXPECT_THAT(ErrorOf({"--peers=nameless"}), HasSubstr("name=address"));
  EXPECT_THAT(ErrorOf({"--server_name="}), HasSubstr("--server_name"));
}

TEST(ServerConfigTest, ChecksAddresses) {
  for (const char* address : {"", "8001", "127.0.0.1", ":8001", "127.0.0.1:", "127.0.0.1:x",
                              "127.0.0.1:65536", "127.0.0.1:-1", "::1:8001", "unix:", "unix:rel"}) {
    EXPECT_THAT(ErrorOf({std::string("--listen=") + address}), HasSubstr("--listen: ")) << address;
  }
  EXPECT_TRUE(Parse({"--listen=[::1]:8001"}).ok());
  EXPECT_TRUE(Parse({"--listen=localhost:8001"}).ok());
}

TEST(ServerConfigTest, PrintsHelpGroupedAndNarrow) {
  const std::string help = ServerHelp();
  for (const ServerFlag& flag : ServerFlags()) {
    EXPECT_THAT(help, HasSubstr(std::string("--") + flag.name + "="));
    EXPECT_THAT(help, HasSubstr(std::string("\n") + flag.group + "\n"));
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(ServerConfigTest, HelpAndVersionEndTheStart) {
  ::testing::internal::CaptureStdout();
  EXPECT_TRUE(Parse({"--help"})->exit_now);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), ServerHelp());
  ::testing::internal::CaptureStdout();
  EXPECT_TRUE(Parse({"--version"})->exit_now);
  const std::string version = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(version, HasSubstr("attnd " + CurrentBuild().version));
  EXPECT_THAT(version, Not(HasSubstr("()")));
}

TEST(ServerConfigTest, DocumentationIsCurrent) {
  std::ifstream file(ATTND_SOURCE_DIR "/docs/configuration.md");
  const std::string committed{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(committed, FlagsAsMarkdown()) << "write it anew with: ninja docs";
}

TEST_F(ConfigFileTest, FlagsWinOverTheFileAndTheFileOverDefaults) {
  const std::string config_flag = Write(
      "# comment\nmax_queue_requests: 5\nmax_steps: 7\nlame_duck: 3s\nbatch_invariant: true\n"
      "peers: [a=x:1, b=y:2]\n");
  const auto parsed = Parse({"--max_steps=9", config_flag, "--batch_invariant=false"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.max_queue_requests, 5);
  EXPECT_EQ(parsed->config.max_steps, 9);
  EXPECT_EQ(parsed->config.lame_duck, Milliseconds(3000));
  EXPECT_FALSE(parsed->config.batch_invariant);
  EXPECT_EQ(parsed->config.peers, (std::vector<std::string>{"a=x:1", "b=y:2"}));
  EXPECT_EQ(parsed->config.max_heads, ServerConfig().max_heads);
}

TEST_F(ConfigFileTest, NamesAnUnknownKeyAndItsLine) {
  EXPECT_EQ(ErrorOf({Write("max_steps: 5\n\nmax_stepz: 6\n")}),
            path_ + ":3: max_stepz: unknown key; --help lists every flag");
  EXPECT_THAT(ErrorOf({Write("config: other.yaml\n")}), HasSubstr(":1: config: unknown key"));
}

TEST_F(ConfigFileTest, NamesTheLineOfABadValue) {
  EXPECT_EQ(ErrorOf({Write("max_steps: 5\nmax_heads: none\n")}),
            path_ + ":2: max_heads: got 'none', need a whole number");
  EXPECT_THAT(ErrorOf({Write("max_steps:\n")}), HasSubstr(":1: max_steps: need a value"));
  EXPECT_THAT(ErrorOf({Write("max_steps: {a: b}\n")}), HasSubstr(":1: max_steps: need a value"));
  EXPECT_THAT(ErrorOf({Write("peers: [[a]]\n")}), HasSubstr(":1: peers: need plain values"));
  EXPECT_THAT(ErrorOf({Write("max_steps: 5\nmax_steps: 6\n")}),
              HasSubstr(":2: max_steps: stands twice"));
}

// Neither flag is wrong alone; what the command line has replaced is not where the error is.
TEST_F(ConfigFileTest, AContradictionNamesTheLinesThatItStandsIn) {
  const std::string file = Write("max_steps: 5\nlame_duck: 30s\n");
  EXPECT_EQ(ErrorOf({file}),
            "--stop_limit: got '20s', need more than --lame_duck, 30s; lame_duck "
            "stands in " +
                path_ + ":2");
  EXPECT_EQ(ErrorOf({file, "--lame_duck=40s"}),
            "--stop_limit: got '20s', need more than --lame_duck, 40s");
}

TEST_F(ConfigFileTest, RefusesWhatIsNoMap) {
  EXPECT_THAT(ErrorOf({Write("- a\n- b\n")}), HasSubstr("need a map"));
  EXPECT_THAT(ErrorOf({Write("just text\n")}), HasSubstr("need a map"));
  EXPECT_THAT(ErrorOf({Write("max_steps: 5\n  bad: [indent\n")}), HasSubstr(path_ + ":"));
  EXPECT_THAT(ErrorOf({Write("\"unterminated")}), HasSubstr(path_));
}

TEST_F(ConfigFileTest, AnEmptyFileChangesNothing) {
  EXPECT_TRUE(Parse({Write("")}).ok());
  EXPECT_TRUE(Parse({Write("# only a comment\n")}).ok());
}

TEST_F(ConfigFileTest, NamesAFileThatCannotBeRead) {
  EXPECT_THAT(ErrorOf({"--config=/no/such/file.yaml"}), HasSubstr("/no/such/file.yaml"));
  EXPECT_THAT(ErrorOf({"--config=" + ::testing::TempDir()}), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace attnd
