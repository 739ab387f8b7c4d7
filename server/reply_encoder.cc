#include "server/reply_encoder.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/util/time_util.h>
#include <grpcpp/support/slice.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attention.pb.h"
#include "server/error_status.h"
#include "server/wire_types.h"

namespace attnd {
namespace {

using google::protobuf::io::CodedOutputStream;
using google::protobuf::util::TimeUtil;

// Up to this many bytes a copy is cheaper than a slice with an owner of its own (an allocation, two
// atomic counts and one more buffer for the kernel's gather write).
constexpr std::int64_t kCopyLimitBytes = 1024;

constexpr std::uint32_t kWireVarint = 0;
constexpr std::uint32_t kWireBytes = 2;

void AppendVarint(std::string& out, std::uint64_t value) {
  std::uint8_t bytes[10];
  const std::uint8_t* end = CodedOutputStream::WriteVarint64ToArray(value, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(end - bytes));
}

void AppendTag(std::string& out, int field, std::uint32_t wire_type) {
  AppendVarint(out, static_cast<std::uint32_t>(field) << 3 | wire_type);
}

void AppendBytes(std::string& out, int field, const std::string& bytes) {
  AppendTag(out, field, kWireBytes);
  AppendVarint(out, bytes.size());
  out += bytes;
}

grpc::Slice SliceOf(const OutputBuffer& buffer) {
  auto* owner = new std::shared_ptr<std::byte[]>(buffer.data);
  const auto release = [](void* held) { delete static_cast<std::shared_ptr<std::byte[]>*>(held); };
  return {buffer.data.get(), static_cast<std::size_t>(buffer.size_bytes), release, owner};
}

// Collects small bytes into one running string and cuts it where a buffer is inserted whole.
class ReplyWriter {
 public:
  std::string& head() { return head_; }

  void AddTensor(int field, kernels::DataType type, const std::vector<std::int64_t>& shape,
                 const OutputBuffer& buffer) {
    std::string prefix;
    AppendTag(prefix, v1::Tensor::kDataTypeFieldNumber, kWireVarint);
    AppendVarint(prefix, static_cast<std::uint64_t>(ToProtoType(type)));
    std::string dimensions;
    for (const std::int64_t dimension : shape) {
      AppendVarint(dimensions, static_cast<std::uint64_t>(dimension));
    }
    AppendBytes(prefix, v1::Tensor::kShapeFieldNumber, dimensions);
    AppendTag(prefix, v1::Tensor::kDataFieldNumber, kWireBytes);
    AppendVarint(prefix, static_cast<std::uint64_t>(buffer.size_bytes));

    AppendTag(head_, field, kWireBytes);
    AppendVarint(head_, prefix.size() + static_cast<std::uint64_t>(buffer.size_bytes));
    head_ += prefix;
    if (buffer.size_bytes == 0) return;
    if (buffer.size_bytes <= kCopyLimitBytes) {
      head_.append(reinterpret_cast<const char*>(buffer.data.get()),
                   static_cast<std::size_t>(buffer.size_bytes));
      return;
    }
    Cut();
    slices_.push_back(SliceOf(buffer));
  }

  grpc::ByteBuffer Finish() {
    Cut();
    return {slices_.data(), slices_.size()};
  }

 private:
  void Cut() {
    if (head_.empty()) return;
    slices_.emplace_back(head_);
    head_.clear();
  }

  std::string head_;
  std::vector<grpc::Slice> slices_;
};

void FillExecution(const ExecutionReport& report, v1::ExecutionInfo& info) {
  for (const char* kernel : report.kernels) info.add_kernels(kernel);
  info.set_num_splits(report.num_splits);
  info.set_batch_requests(report.batch_requests);
  info.set_batch_tokens(report.batch_tokens);
  *info.mutable_queue_time() = TimeUtil::NanosecondsToDuration(report.queue_time.count());
  *info.mutable_kernel_time() = TimeUtil::NanosecondsToDuration(report.kernel_time.count());
}

void AddOutputs(ReplyWriter& writer, int o_field, int lse_field, const ReplyShape& shape,
                const AttentionResult& result) {
  if (shape.has_o) {
    writer.AddTensor(o_field, shape.o_type, {shape.rows, shape.num_heads, shape.head_dim},
                     result.o);
  }
  if (shape.has_lse) {
    writer.AddTensor(lse_field, kernels::DataType::kFp32, {shape.rows, shape.num_heads},
                     result.lse);
  }
}

}  // namespace

ReplyShape ReplyShapeOf(const AttentionRequest& request) {
  ReplyShape shape;
  shape.has_o = request.q.present;
  shape.has_lse = shape.has_o && request.return_lse;
  shape.o_type = request.partial ? kernels::DataType::kFp32 : request.data_type;
  shape.rows = shape.has_o ? request.q.shape.front() : 0;
  shape.num_heads = request.num_heads;
  shape.head_dim = request.head_dim;
  return shape;
}

absl::Status CheckResult(const ReplyShape& shape, const AttentionResult& result) {
  if (result.o.size_bytes == shape.o_bytes() && result.lse.size_bytes == shape.lse_bytes()) {
    return absl::OkStatus();
  }
  return ErrorStatus(absl::StatusCode::kInternal, v1::REASON_INTERNAL, "",
                     absl::StrCat("the backend returned ", result.o.size_bytes, " bytes of o and ",
                                  result.lse.size_bytes, " of lse where ", shape.o_bytes(), " and ",
                                  shape.lse_bytes(), " were due"));
}

grpc::ByteBuffer EncodeAttendResponse(const ReplyShape& shape, const AttentionResult& result) {
  ReplyWriter writer;
  v1::AttendResponse rest;
  FillExecution(result.execution, *rest.mutable_execution());
  // Fields may come in any order: what is small goes first, so that head and tensor headers are one
  // slice.
  rest.AppendToString(&writer.head());
  AddOutputs(writer, v1::AttendResponse::kOFieldNumber, v1::AttendResponse::kLseFieldNumber, shape,
             result);
  return writer.Finish();
}

grpc::ByteBuffer EncodeDecodeResponse(std::uint64_t request_id, ReplyTo to, const ReplyShape& shape,
                                      const AttentionResult& result) {
  ReplyWriter writer;
  v1::DecodeResponse rest;
  rest.set_request_id(request_id);
  if (to == ReplyTo::kStream) rest.mutable_status();
  for (const StepFailure& failure : result.failed_steps) {
    v1::StepFailure& failed = *rest.add_failed_steps();
    failed.set_step_index(failure.step_index);
    *failed.mutable_status() = ToProtoStatus(failure.status);
  }
  FillExecution(result.execution, *rest.mutable_execution());
  rest.AppendToString(&writer.head());
  AddOutputs(writer, v1::DecodeResponse::kOFieldNumber, v1::DecodeResponse::kLseFieldNumber, shape,
             result);
  return writer.Finish();
}

grpc::ByteBuffer EncodeDecodeFailure(std::uint64_t request_id, const absl::Status& status) {
  v1::DecodeResponse response;
  response.set_request_id(request_id);
  *response.mutable_status() = ToProtoStatus(status);
  ReplyWriter writer;
  response.AppendToString(&writer.head());
  return writer.Finish();
}

}  // namespace attnd
