// The attnd binary of a CUDA build on machines whose driver is missing, too old or broken: a
// library in the driver's place, found by the loader as the real one is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/support/server_process.h"

namespace attnd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ServerProcess;

struct Driver {
  int version = 0;
  int init_error = 0;
};

class CudaDriverTest : public ::testing::Test {
 protected:
  static std::vector<std::string> With(const Driver& driver) {
    return {"env", std::string("LD_LIBRARY_PATH=") + ATTND_FAKE_CUDA_FOLDER,
            "ATTND_FAKE_CUDA_VERSION=" + std::to_string(driver.version),
            "ATTND_FAKE_CUDA_INIT=" + std::to_string(driver.init_error)};
  }
  // The log of a server that insists on a GPU and must not start.
  static std::string RefusalOf(const Driver& driver) {
    ServerProcess server(ATTND_BINARY, {"--device=cuda:0"}, With(driver));
    EXPECT_FALSE(server.AwaitServing().has_value()) << server.log();
    EXPECT_EQ(server.AwaitExit(), 1) << server.log();
    return server.log();
  }
  // The log up to serving of one that takes what there is.
  static std::string StartOf(const Driver& driver) {
    ServerProcess server(ATTND_BINARY, {"--device=auto", "--lame_duck=0"}, With(driver));
    EXPECT_TRUE(server.AwaitServing().has_value()) << server.log();
    const std::string log = server.log();
    server.Signal(SIGTERM);
    EXPECT_EQ(server.AwaitExit(), 0) << server.log();
    return log;
  }
  // The line of the log that holds `text`; empty: none.
  static std::string LineWith(const std::string& log, const std::string& text) {
    const std::size_t found = log.find(text);
    if (found == std::string::npos) return "";
    const std::size_t begin = log.rfind('\n', found) + 1;
    return log.substr(begin, log.find('\n', found) - begin);
  }
};

constexpr Driver kNone{0, 0}, kOld{12020, 0}, kBroken{13000, 999}, kWithoutGpu{13000, 100};

TEST_F(CudaDriverTest, AnOldDriverIsNamedWithBothWaysOut) {
  const auto named =
      AllOf(HasSubstr("CUDA 12.2"), HasSubstr("CUDA 13.0"), HasSubstr("driver 580 or newer"),
            HasSubstr("install a newer driver"), HasSubstr("cuda-compat-13-0"));
  EXPECT_THAT(RefusalOf(kOld), named);
  // Served by the CPU, which nobody asked for: an error line all the same.
  EXPECT_THAT(LineWith(StartOf(kOld), "run on the CPU"), AllOf(HasSubstr(" error "), named));
}

TEST_F(CudaDriverTest, WithoutADriverTheCpuServesAndOneLineSaysSo) {
  const std::string log = StartOf(kNone);
  EXPECT_THAT(LineWith(log, "run on the CPU"),
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr(" info ")));
  EXPECT_THAT(log, Not(HasSubstr(" error ")));
  EXPECT_THAT(RefusalOf(kNone), HasSubstr("--device: got 'cuda:0': no NVIDIA driver"));
}

TEST_F(CudaDriverTest, ABrokenDriverIsNeverHidden) {
  EXPECT_THAT(RefusalOf(kBroken), HasSubstr("the NVIDIA driver does not work"));
  EXPECT_THAT(LineWith(StartOf(kBroken), "run on the CPU"),
              AllOf(HasSubstr(" error "), HasSubstr("the NVIDIA driver does not work")));
}

TEST_F(CudaDriverTest, ADriverWithoutAGpuIsNoFault) {
  EXPECT_THAT(RefusalOf(kWithoutGpu), HasSubstr("no GPU"));
  EXPECT_THAT(LineWith(StartOf(kWithoutGpu), "run on the CPU"),
              AllOf(HasSubstr(" info "), HasSubstr("no GPU")));
}

}  // namespace
}  // namespace attnd
