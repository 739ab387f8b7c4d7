#include "client/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/support/temporary_path.h"

namespace attnd::client {
namespace {

FileBytes File(const std::string& text) {
  std::shared_ptr<std::byte> bytes = AllocateBytes(static_cast<std::int64_t>(text.size()));
  std::memcpy(bytes.get(), text.data(), text.size());
  return {bytes, static_cast<std::int64_t>(text.size())};
}

std::string Content(const std::string& header, const std::string& data) {
  std::string text;
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xFF));
  return text + header + data;
}

absl::StatusCode CodeOf(const std::string& text) {
  return ParseSafetensors(File(text)).status().code();
}

TEST(SafetensorsTest, TensorsAndMetadataSurviveARoundTrip) {
  Safetensors content;
  content.metadata["source"] = "a \"quoted\" text\n";
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  content.tensors["layer.0/q"] = *TensorFromFloats(v1::DATA_TYPE_FP32, {2, 3}, values);
  content.tensors["k"] = *TensorFromFloats(v1::DATA_TYPE_BF16, {6}, values);
  content.tensors["v"] = *TensorFromFloats(v1::DATA_TYPE_FP16, {1, 6}, values);
  content.tensors["empty"] = Tensor{v1::DATA_TYPE_FP32, {0, 4}, nullptr, 0};
  const std::string path = TemporaryPath("round_trip.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, content).ok());
  const auto read = ReadSafetensors(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->metadata, content.metadata);
  ASSERT_EQ(read->tensors.size(), 4U);
  for (const char* name : {"layer.0/q", "k", "v"}) {
    const auto tensor = read->Find(name);
    ASSERT_TRUE(tensor.ok());
    EXPECT_EQ(tensor->shape, content.tensors[name].shape);
    EXPECT_EQ(*FloatsFromTensor(*tensor), values);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor->data.get()) % 2, 0U);
  }
}

TEST(SafetensorsTest, AnAbsentNameListsTheNamesThatThereAre) {
  Safetensors content;
  content.tensors["present"] = Tensor{v1::DATA_TYPE_FP32, {0}, nullptr, 0};
  const auto found = content.Find("absent");
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(found.status().message()).find("present"), std::string::npos);
}

TEST(SafetensorsTest, OtherElementTypesAreListedAndNotLoaded) {
  const auto content = ParseSafetensors(
      File(Content(R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", "12345678")));
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_TRUE(content->tensors.empty());
  EXPECT_EQ(content->not_loaded, std::vector<std::string>{"ids"});
}

TEST(SafetensorsTest, HeadersThatDoNotFitAreRefused) {
  const std::string whole =
      Content(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234");
  ASSERT_EQ(CodeOf(whole), absl::StatusCode::kOk);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(CodeOf(whole.substr(0, length)), absl::StatusCode::kInvalidArgument) << length;
  }
  EXPECT_EQ(CodeOf(whole + "x"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(std::string(8, '\xFF') + "{}"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(std::string("\0\0\0\0\0\0\0\x80", 8)), absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, MalformedEntriesAreRefused) {
  for (
      const char* header : {
          "",
          "[]",
          "{",
          "null",
          R"({"a":1})",
          R"({"a":{"dtype":"F32","shape":[2]}})",
          R"({"a":{"dtype":"F32","data_offsets":[0,8]}})",
          R"({"a":{"shape":[2],"data_offsets":[0,8]}})",
          R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})",
          R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})",
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})",
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}})",
          R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
          R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
          R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})",
          R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})",
          R"({"__metadata__":{"a":1},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
          R"({"__metadata__":[],"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
      }) {
    EXPECT_EQ(CodeOf(Content(header, "12345678")), absl::StatusCode::kInvalidArgument) << header;
  }
}

TEST(SafetensorsTest, OverlapsGapsAndRepeatedNamesAreRefused) {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  ASSERT_EQ(CodeOf(Content(two("[4,8]", "[0,4]"), "12345678")), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(Content(two("[0,4]", "[0,4]"), "1234")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Content(two("[0,4]", "[2,6]"), "123456")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Content(two("[0,4]", "[5,9]"), "123456789")),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Content(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                           "1234")),
            absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, DeepNestingDoesNotOverflowTheStack) {
  EXPECT_EQ(CodeOf(Content(std::string(1'000'000, '['), "")), absl::StatusCode::kInvalidArgument);
}

// Whatever is changed in a good file, the reader ends, and what it accepts lies inside the file.
TEST(SafetensorsTest, DamagedFilesNeverReachOutside) {
  const std::string whole = Content(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
      "12345678");
  std::mt19937 random(11);
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = whole;
    for (int flips = 0; flips < 2; ++flips) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    const FileBytes file = File(damaged);
    const auto content = ParseSafetensors(file);
    if (!content.ok()) continue;
    for (const auto& [name, tensor] : content->tensors) {
      EXPECT_GE(tensor.data.get(), file.data.get());
      EXPECT_LE(tensor.data.get() + tensor.size_bytes, file.data.get() + file.size);
    }
  }
}

}  // namespace
}  // namespace attnd::client
