#include "loadtest/scenario.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_path.h"

namespace attnd::loadtest {
namespace {

std::string WriteFile(const char* name, const std::string& text) {
  const std::string path = TemporaryPath(name);
  std::ofstream(path) << text;
  return path;
}

TEST(ScenarioTest, KeysAreReadAndDefaultsFilledIn) {
  const auto scenario = ParseScenario(
      "kind=decode,type=bf16,heads=32,kv_heads=8,head_dim=128,prompt=4096,steps=9,mode=stream,"
      "connections=3,sequences=4,window=100,soft_cap=2.5,layers=2");
  ASSERT_TRUE(scenario.ok()) << scenario.status();
  EXPECT_EQ(scenario->kind, Kind::kDecode);
  EXPECT_EQ(scenario->data_type, v1::DATA_TYPE_BF16);
  EXPECT_EQ(scenario->kv_heads, 8);
  EXPECT_EQ(scenario->mode, CallMode::kStream);
  EXPECT_EQ(scenario->workers, 8);
  EXPECT_EQ(scenario->soft_cap, 2.5);
  EXPECT_EQ(scenario->name, "decode_4096_32x8_d128_bf16");
  EXPECT_EQ(TokensPerRequest(*scenario), 4);

  const auto attend = ParseScenario("tokens=100,sequences=3,causal=false");
  ASSERT_TRUE(attend.ok());
  EXPECT_EQ(attend->kv_tokens, 100);
  EXPECT_EQ(attend->kv_heads, attend->heads);
  EXPECT_EQ(attend->workers, 1);
  EXPECT_FALSE(attend->causal);
  EXPECT_EQ(TokensPerRequest(*attend), 300);
}

TEST(ScenarioTest, SpecsReadBackAsTheSameShape) {
  for (const char* text : {"tokens=100,sequences=3,causal=false,type=fp16,kv_tokens=7",
                           "kind=decode,heads=32,kv_heads=8,head_dim=128,prompt=9,steps=2,layers=3,"
                           "mode=stream,connections=2,workers=5,step_tokens=2,accepted=1"}) {
    const Scenario scenario = ParseScenario(text).value();
    const auto again = ParseScenario(ScenarioSpec(scenario));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(ScenarioSpec(*again), ScenarioSpec(scenario));
    EXPECT_EQ(again->name, scenario.name);
    EXPECT_EQ(again->workers, scenario.workers);
  }
}

TEST(ScenarioTest, WrongValuesNameTheirKey) {
  for (const char* text :
       {"heads=0", "heads=", "head_dim=257", "head_dim=64x", "tokens=-1", "type=int8", "kind=train",
        "mode=carrier", "step_tokens=0", "accepted=-1", "rate=-1", "rate=1e12", "rate=fast",
        "arrivals=never", "max_in_flight=0", "causal=perhaps", "soft_cap=-1", "soft_cap=nan",
        "workers=99999999999"}) {
    const auto scenario = ParseScenario(text);
    ASSERT_FALSE(scenario.ok()) << text;
    const std::string key = std::string(text).substr(0, std::string(text).find('='));
    EXPECT_NE(std::string(scenario.status().message()).find("key " + key), std::string::npos)
        << scenario.status();
  }
  EXPECT_FALSE(ParseScenario("colour=red").ok());
  EXPECT_FALSE(ParseScenario("heads=8,kv_heads=3").ok());
  EXPECT_FALSE(ParseScenario("kind=attend,mode=stream").ok());
  EXPECT_FALSE(ParseScenario("kind=decode,capture=x").ok());
  EXPECT_FALSE(ParseScenario("kind=decode,step_tokens=3,accepted=4").ok());
  EXPECT_FALSE(ParseScenario("kind=decode,step_tokens=9,steps=8").ok());
}

TEST(ScenarioTest, AStepOfSeveralTokensKeepsAllOfThemUnlessItSaysOtherwise) {
  const Scenario whole = ParseScenario("kind=decode,step_tokens=5,sequences=2").value();
  EXPECT_EQ(whole.accepted, 5);
  EXPECT_EQ(TokensPerRequest(whole), 10);
  EXPECT_EQ(ParseScenario("kind=decode,step_tokens=5,accepted=3").value().accepted, 3);
}

TEST(ScenarioTest, AScenarioSaysHowItIsSent) {
  const Scenario scenario = ParseScenario("rate=12.5,arrivals=burst,max_in_flight=9").value();
  EXPECT_EQ(scenario.rate, 12.5);
  EXPECT_EQ(scenario.arrivals, "burst");
  EXPECT_EQ(scenario.max_in_flight, 9);
  EXPECT_EQ(ParseScenario("").value().rate, 0);
}

TEST(ScenarioTest, YamlListsHoldTheSameKeys) {
  const auto scenarios = ReadScenarios(WriteFile("scenarios.yaml",
                                                 "scenarios:\n"
                                                 "  - name: first\n"
                                                 "    kind: attend\n"
                                                 "    tokens: 64\n"
                                                 "  - {kind: decode, type: fp16}\n"));
  ASSERT_TRUE(scenarios.ok()) << scenarios.status();
  ASSERT_EQ(scenarios->size(), 2U);
  EXPECT_EQ((*scenarios)[0].name, "first");
  EXPECT_EQ((*scenarios)[0].tokens, 64);
  EXPECT_EQ((*scenarios)[1].data_type, v1::DATA_TYPE_FP16);
}

TEST(ScenarioTest, MalformedYamlIsRefused) {
  for (const char* text :
       {"", "[]", "scenarios: 3", "scenarios: []", "scenarios: [1]", "scenarios: [{heads: [1]}]",
        "scenarios: [{colour: red}]", "scenarios: [{heads: 1", "other: []"}) {
    EXPECT_FALSE(ReadScenarios(WriteFile("bad.yaml", text)).ok()) << text;
  }
  EXPECT_FALSE(ReadScenarios("/no/such/file.yaml").ok());
}

TEST(ScenarioTest, ShippedScenarioFilesAreValid) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ATTND_SCENARIOS)) {
    const auto scenarios = ReadScenarios(entry.path().string());
    EXPECT_TRUE(scenarios.ok()) << scenarios.status();
    ++files;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace attnd::loadtest
