#include "client/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
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

// A version 1 file (2 or 3: a length of 4 bytes) with this header and data.
std::string Npy(const std::string& header, const std::string& data, int version = 1) {
  std::string text("\x93NUMPY", 6);
  text.push_back(static_cast<char>(version));
  text.push_back('\0');
  text.push_back(static_cast<char>(header.size() & 0xFF));
  text.push_back(static_cast<char>(header.size() >> 8));
  if (version > 1) text.append(2, '\0');
  return text + header + data;
}

absl::StatusCode CodeOf(const std::string& text) { return ParseNpy(File(text)).status().code(); }

TEST(NpyTest, EveryTypeAndRankSurvivesARoundTrip) {
  for (const auto type : {v1::DATA_TYPE_FP32, v1::DATA_TYPE_FP16, v1::DATA_TYPE_BF16}) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {1}, {6}, {2, 3}, {1, 2, 3}, {0, 3}}) {
      const std::int64_t count = *TensorBytes(type, shape) / ElementBytes(type);
      std::vector<float> values;
      for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i) - 2.5F);
      const Tensor tensor = *TensorFromFloats(type, shape, values);
      const std::string path = TemporaryPath("round_trip.npy");
      ASSERT_TRUE(WriteNpy(path, tensor).ok());
      EXPECT_EQ(
          (std::filesystem::file_size(path) - static_cast<std::uintmax_t>(tensor.size_bytes)) % 64,
          0U);
      const auto read = ReadNpy(path);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->data_type, type);
      EXPECT_EQ(read->shape, shape);
      EXPECT_EQ(*FloatsFromTensor(*read), values);
    }
  }
}

// Bytes as NumPy 1.26 writes them for np.array([[1, 2]], dtype=np.float32), version 1 and 2.
TEST(NpyTest, ReadsWhatNumpyWrites) {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }      \n";
  const std::string data("\x00\x00\x80\x3F\x00\x00\x00\x40", 8);
  for (const int version : {1, 2, 3}) {
    const auto tensor = ParseNpy(File(Npy(header, data, version)));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(*FloatsFromTensor(*tensor), (std::vector<float>{1, 2}));
  }
}

TEST(NpyTest, BitPatternsOfBf16AreReadFromEveryForm) {
  for (const char* descr : {"|V2", "<V2", "<u2"}) {
    const std::string header =
        std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (1,)}";
    const auto tensor = ParseNpy(File(Npy(header, std::string("\x80\x3F", 2))));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->data_type, v1::DATA_TYPE_BF16);
    EXPECT_EQ(*FloatsFromTensor(*tensor), (std::vector<float>{1}));
  }
}

TEST(NpyTest, KeysMayStandInAnyOrder) {
  EXPECT_TRUE(
      ParseNpy(File(Npy("{\"shape\": (2,), 'fortran_order': False, 'descr': '<f2'}", "abcd")))
          .ok());
}

TEST(NpyTest, EveryTruncationIsRefused) {
  const std::string whole =
      Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }\n", "12345678");
  ASSERT_EQ(CodeOf(whole), absl::StatusCode::kOk);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(CodeOf(whole.substr(0, length)), absl::StatusCode::kInvalidArgument) << length;
  }
  EXPECT_EQ(CodeOf(whole + "x"), absl::StatusCode::kInvalidArgument);
}

TEST(NpyTest, UnusableHeadersAreRefused) {
  const std::string data(8, 'x');
  for (const char* header : {
           "{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}",
           "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
           "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387905, 4)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
           "{'descr': '<f4', 'fortran_order': False}",
           "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,)}",
           "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
           "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} trailing",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2",
           "{'descr': '<f4",
           "{",
           "",
           "[]",
       }) {
    EXPECT_EQ(CodeOf(Npy(header, data)), absl::StatusCode::kInvalidArgument) << header;
  }
  EXPECT_EQ(CodeOf(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", data, 9)),
            absl::StatusCode::kInvalidArgument);
}

TEST(NpyTest, MissingFilesAndDirectoriesAreReported) {
  EXPECT_EQ(ReadNpy(TemporaryPath("no_such_file.npy")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadNpy(::testing::TempDir()).ok());
  const Tensor tensor = *TensorFromFloats(v1::DATA_TYPE_FP32, {1}, std::vector<float>{1});
  EXPECT_FALSE(WriteNpy("/no/such/directory/file.npy", tensor).ok());
  EXPECT_FALSE(WriteNpy("/dev/full", tensor).ok()) << "a full disk must not pass unnoticed";
}

}  // namespace
}  // namespace attnd::client
