// The attnctl binary against the real server in this process, over files.
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "client/npy.h"
#include "client/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"
#include "tests/support/run_program.h"

namespace attnd::client {
namespace {

using Json = nlohmann::json;

class AttnctlE2eTest : public ::testing::Test {
 protected:
  // With --server and --json.
  ProgramResult Run(const std::string& arguments) {
    return RunProgram(ATTND_ATTNCTL,
                      "--server " + local_.server->address() + " --admin 127.0.0.1:" +
                          std::to_string(local_.server->admin_port()) + " --json " + arguments);
  }
  Json RunOk(const std::string& arguments) {
    const ProgramResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.errors;
    return Json::parse(result.output, nullptr, false);
  }
  static std::string Save(const char* name, v1::DataType type, std::vector<std::int64_t> shape,
                          const std::vector<float>& values) {
    const std::string path = TemporaryPath(name);
    EXPECT_TRUE(WriteNpy(path, TensorFromFloats(type, std::move(shape), values).value()).ok());
    return path;
  }

  attnd::testing::LocalServer local_;
};

TEST_F(AttnctlE2eTest, InfoTellsKernelsAndLimits) {
  const Json info = RunOk("info");
  EXPECT_FALSE(info["kernels"].empty());
  EXPECT_EQ(info["devices"][0]["backend"], "cpu");
  const ProgramResult table =
      RunProgram(ATTND_ATTNCTL, "info --server " + local_.server->address());
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_NE(table.output.find("kernels"), std::string::npos);
}

TEST_F(AttnctlE2eTest, AttendReadsAndWritesNpy) {
  for (const auto type : {v1::DATA_TYPE_FP32, v1::DATA_TYPE_FP16, v1::DATA_TYPE_BF16}) {
    const std::string q = Save("q.npy", type, {2, 1, 4}, {1, 0, 0, 0, 0, 1, 0, 0});
    const std::string k = Save("k.npy", type, {1, 1, 4}, {1, 1, 1, 1});
    const std::string v = Save("v.npy", type, {1, 1, 4}, {1, 2, 3, 4});
    const std::string out = TemporaryPath("o.npy");
    const std::string lse = TemporaryPath("lse.npy");
    const Json json = RunOk("attend --q " + q + " --k " + k + " --v " + v +
                            " --softmax_scale 2 --out " + out + " --lse_out " + lse);
    EXPECT_EQ(json["o"]["shape"], (std::vector<int>{2, 1, 4}));
    const auto o = ReadNpy(out);
    ASSERT_TRUE(o.ok()) << o.status();
    EXPECT_EQ(o->data_type, type);
    // One key: its value, whatever the score; the score is 2 x 1.
    EXPECT_EQ(*FloatsFromTensor(*o), (std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4}));
    EXPECT_EQ(*FloatsFromTensor(*ReadNpy(lse)), (std::vector<float>{2, 2}));
  }
}

// Tensors of a real model, and what the model itself computed from them.
TEST_F(AttnctlE2eTest, CapturedLayersGiveTheModelsOwnOutput) {
  const std::string capture = ATTND_CAPTURE;
  for (int layer = 0; layer < 6; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const Json json = RunOk("attend --input " + capture + " --prefix " + prefix + " --expected " +
                            capture + ":" + prefix + "o --tolerance 2e-6");
    EXPECT_EQ(json["difference"]["mismatched_specials"], 0);
  }
  const ProgramResult wrong =
      Run("attend --causal --input " + capture + " --prefix layers.0. --expected " + capture +
          ":layers.0.o --tolerance 1e-3");
  EXPECT_EQ(wrong.exit_code, 1) << "a wrong mask must not pass";
}

TEST_F(AttnctlE2eTest, SequencesLiveFromCreationToDeletion) {
  const std::string id =
      RunOk("sequences create --layers 2 --heads 1 --head_dim 4 --lease 60")["sequence_id"];
  EXPECT_EQ(id.size(), 48U);
  const std::string rows =
      Save("rows.npy", v1::DATA_TYPE_FP32, {3, 1, 4}, std::vector<float>(12, 1));
  const Json prompt = RunOk("decode --sequence " + id + " --k " + rows + " --v " + rows);
  EXPECT_EQ(prompt["position"], 0);
  EXPECT_TRUE(prompt["o"].is_null());
  const std::string one = Save("one.npy", v1::DATA_TYPE_FP32, {1, 1, 4}, {1, 2, 3, 4});
  const std::string out = TemporaryPath("step.safetensors") + ":step.o";
  const Json step = RunOk("decode --sequence " + id + " --q " + one + " --k " + one + " --v " +
                          one + " --out " + out);
  EXPECT_EQ(step["position"], 3) << "the position comes from the server where none is given";
  EXPECT_TRUE(ReadSafetensors(TemporaryPath("step.safetensors"))->Find("step.o").ok());

  const Json got = RunOk("sequences get " + id);
  EXPECT_EQ(got["layer_tokens"], (std::vector<std::string>{"4", "0"}));
  const std::string fork = RunOk("sequences fork " + id + " --num_tokens 2")["sequence_id"];
  EXPECT_EQ(RunOk("sequences list")["sequences"].size(), 2U);
  EXPECT_EQ(RunOk("sequences truncate " + id + " --num_tokens 1 --epoch 1")["succeeded"], 1);
  EXPECT_EQ(RunOk("sequences renew --lease 30 " + id + " " + fork)["succeeded"], 2);
  EXPECT_EQ(RunOk("sequences delete " + id + " " + fork)["succeeded"], 2);
  const ProgramResult gone = Run("sequences get " + id);
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_EQ(Json::parse(gone.output)["error"]["detail"]["reason"], "REASON_DELETED");
}

TEST_F(AttnctlE2eTest, NoStepIsSentWhereItsOutputHasNoPlace) {
  const std::string id = RunOk("sequences create --layers 1 --heads 1 --head_dim 4")["sequence_id"];
  const std::string one = Save("place.npy", v1::DATA_TYPE_FP32, {1, 1, 4}, {1, 2, 3, 4});
  const std::string step =
      "decode --sequence " + id + " --q " + one + " --k " + one + " --v " + one;
  for (const char* output : {"--out /no/such/folder/o.npy", "--out /dev/full", "--lse_out /tmp",
                             "--lse_out /no/such/folder/lse.safetensors:lse"}) {
    EXPECT_EQ(Run(step + " " + output).exit_code, 2) << output;
  }
  EXPECT_EQ(RunOk("sequences get " + id)["layer_tokens"], (std::vector<std::string>{"0"}));
}

TEST_F(AttnctlE2eTest, RotationIsRefusedWhereItIsIncomplete) {
  const std::string create = "sequences create --layers 1 --heads 1 --head_dim 4 ";
  for (const char* flags :
       {"--rope_dim 4", "--rope_interleaved", "--rope_theta nan", "--rope_theta -1"}) {
    EXPECT_EQ(Run(create + flags).exit_code, 1) << flags;
  }
  RunOk(create + "--rope_theta 10000 --rope_dim 2");
}

TEST_F(AttnctlE2eTest, PartsMergeOnFiles) {
  std::vector<float> values;
  for (int i = 0; i < 24; ++i) values.push_back(static_cast<float>(i % 7) - 3);
  const std::string q = Save("mq.npy", v1::DATA_TYPE_FP32, {2, 1, 4}, {1, 0, 2, 0, 0, 1, 0, 1});
  const std::string all = Save("mk.npy", v1::DATA_TYPE_FP32, {6, 1, 4}, values);
  const std::string low =
      Save("low.npy", v1::DATA_TYPE_FP32, {2, 1, 4}, {values.begin(), values.begin() + 8});
  const std::string high =
      Save("high.npy", v1::DATA_TYPE_FP32, {4, 1, 4}, {values.begin() + 8, values.end()});
  RunOk("attend --q " + q + " --k " + all + " --v " + all + " --out " + TemporaryPath("whole.npy"));
  std::string merge = "merge";
  for (const auto& [part, name] : {std::pair(low, "p0"), std::pair(high, "p1")}) {
    const std::string o = TemporaryPath(std::string(name) + "o.npy");
    const std::string lse = TemporaryPath(std::string(name) + "lse.npy");
    RunOk("attend --partial --q " + q + " --k " + part + " --v " + part + " --out " + o +
          " --lse_out " + lse);
    merge += " --o " + o + " --lse " + lse;
  }
  RunOk(merge + " --out " + TemporaryPath("merged.npy"));
  const std::vector<float> whole = *FloatsFromTensor(*ReadNpy(TemporaryPath("whole.npy")));
  const std::vector<float> merged = *FloatsFromTensor(*ReadNpy(TemporaryPath("merged.npy")));
  ASSERT_EQ(whole.size(), merged.size());
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], merged[i], 1e-6);
}

TEST_F(AttnctlE2eTest, ErrorsHaveTheirExitCodes) {
  const std::string q = Save("eq.npy", v1::DATA_TYPE_FP32, {1, 1, 4}, {1, 2, 3, 4});
  const std::string k = Save("ek.npy", v1::DATA_TYPE_FP32, {1, 1, 2}, {1, 2});
  EXPECT_EQ(Run("attend --q " + q + " --k " + k + " --v " + k).exit_code, 1) << "shapes";
  EXPECT_EQ(Run("attend --q /no/such.npy --k " + k + " --v " + k).exit_code, 2);
  EXPECT_EQ(Run("attend --q " + q).exit_code, 2);
  EXPECT_EQ(Run("attend --no_such_flag").exit_code, 2);
  EXPECT_EQ(Run("").exit_code, 2);
  EXPECT_EQ(Run("sequences get xyz").exit_code, 2);
  EXPECT_EQ(Run("sequences get 0123").exit_code, 1);
  EXPECT_EQ(Run("attend --q " + q + " --k " + q + " --v " + q + " --tolerance 1").exit_code, 2)
      << "nothing to compare with";
  EXPECT_EQ(RunProgram(ATTND_ATTNCTL, "info --server 127.0.0.1:1 --timeout 0.3").exit_code, 3);
  EXPECT_EQ(RunProgram(ATTND_ATTNCTL, "drain --admin 127.0.0.1:1 --timeout 1").exit_code, 3);
  EXPECT_EQ(RunProgram(ATTND_ATTNCTL, "--help").exit_code, 0);
  EXPECT_EQ(RunProgram(ATTND_ATTNCTL, "sequences create --help").exit_code, 0);
}

// Each says what was given and what is needed, or what happened.
TEST_F(AttnctlE2eTest, ErrorsSayWhatIsWrong) {
  const std::string nobody = " --server 127.0.0.1:1 --admin 127.0.0.1:1";
  const std::string grpc_port = " --admin " + local_.server->address();
  for (const auto& [arguments, text] : std::vector<std::pair<std::string, std::string>>{
           {"bogus", "unknown subcommand 'bogus'"},
           {"sequences bogus", "unknown subcommand 'bogus'"},
           {"--bogus", "unknown flag '--bogus'"},
           {"", "A subcommand is required"},
           {"info --timeout 0", "--timeout: got '0', need a number above 0"},
           {"info --timeout soon", "--timeout: got 'soon', need a number above 0"},
           {"sequences create --heads 0", "--heads: got '0', need a number above 0"},
           {"sequences truncate 00 --epoch 1 --num_tokens=-1", "got '-1', need 0 or more"},
           {"drain" + nobody, "no admin port at 127.0.0.1:1: nothing accepts connections there"},
           {"drain" + grpc_port, "connected, but no HTTP answer came"}}) {
    const ProgramResult result = RunProgram(ATTND_ATTNCTL, arguments);
    EXPECT_NE(result.exit_code, 0) << arguments;
    EXPECT_NE(result.errors.find(text), std::string::npos) << arguments << ": " << result.errors;
    EXPECT_LT(result.errors.size(), 200U) << result.errors;
  }
  const std::string q = Save("named.npy", v1::DATA_TYPE_FP32, {1, 1, 4}, {1, 2, 3, 4});
  const ProgramResult folder =
      Run("attend --q " + q + " --k " + q + " --v " + q + " --out /no/such/folder/o.npy");
  EXPECT_EQ(folder.exit_code, 2);
  EXPECT_NE(folder.errors.find("the folder /no/such/folder does not exist"), std::string::npos)
      << folder.errors;
}

TEST_F(AttnctlE2eTest, TimesBeyondAllMeasureAreCut) {
  const Json created =
      RunOk("--timeout 1e300 sequences create --heads 1 --head_dim 4 --lease 1e300");
  EXPECT_EQ(created["lease_seconds"].get<double>(), 3600) << "the server's limit";
  RunOk("--timeout 1e300 drain");
}

// More than a socket takes at once, and refused before all of it is sent: what is left does not
// keep the program from ending. Whether gRPC would wait depends on the moment, hence several runs.
TEST_F(AttnctlE2eTest, AMessageThatIsCutShortLetsTheProgramEndAtOnce) {
  v1::AttentionService::Service service;  // behind gRPC's own limit, 4 MiB
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  constexpr std::int64_t kTokens = 2048;
  const std::string path = Save("two_mib.npy", v1::DATA_TYPE_FP32, {kTokens, 1, 256},
                                std::vector<float>(kTokens * 256, 1.0F));
  for (int run = 0; run < 8; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    const ProgramResult refused =
        RunProgram(ATTND_ATTNCTL, "attend --server 127.0.0.1:" + std::to_string(port) + " --q " +
                                      path + " --k " + path + " --v " + path);
    EXPECT_NE(refused.errors.find("RESOURCE_EXHAUSTED"), std::string::npos) << refused.errors;
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  }
}

// A drain has no end: neither command asks twice.
TEST_F(AttnctlE2eTest, DrainRefusesNewSequencesAndForksAtOnce) {
  const std::string parent = RunOk("sequences create --heads 1 --head_dim 4")["sequence_id"];
  EXPECT_EQ(RunOk("drain")["draining"], true);
  for (const auto& [command, method] :
       {std::pair<std::string, std::string>{"create --heads 1 --head_dim 4", "CreateSequence"},
        {"fork " + parent, "ForkSequence"}}) {
    const ProgramResult refused = Run("sequences " + command);
    EXPECT_EQ(refused.exit_code, 3);
    EXPECT_EQ(Json::parse(refused.output)["error"]["detail"]["reason"], "REASON_DRAINING");
    EXPECT_EQ(attnd::testing::ParseExposition(local_.server->MetricsText())
                  .Value("attnd_requests_total", {{"method", method}, {"code", "UNAVAILABLE"}}),
              1)
        << method;
  }
}

}  // namespace
}  // namespace attnd::client
