#include "loadtest/echo_server.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "client/slice_cursor.h"
#include "client/tensor.h"
#include "client/transport.h"
#include "grpcpp/grpcpp.h"

namespace attnd::loadtest {
namespace {

using Service = v1::AttentionService;
// Raw where attnd is raw, typed where it is typed.
using EchoBase = Service::WithRawCallbackMethod_Attend<Service::WithRawCallbackMethod_Decode<
    Service::WithRawCallbackMethod_DecodeStream<Service::WithCallbackMethod_CreateSequence<
        Service::WithCallbackMethod_DeleteSequences<Service::Service>>>>>;

// One stream: answers every request in turn, one write at a time.
class EchoStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  EchoStream(const grpc::Slice& body, std::atomic<std::int64_t>& request_bytes)
      : body_(body), request_bytes_(request_bytes) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      const std::lock_guard<std::mutex> lock(mutex_);
      reads_ended_ = true;
      if (!writing_) Finish(grpc::Status::OK);
      return;
    }
    request_bytes_ = static_cast<std::int64_t>(request_.Length());
    grpc::ByteBuffer reply = ReplyTo(request_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      replies_.push_back(std::move(reply));
      WriteNext();
    }
    StartRead(&request_);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    replies_.pop_front();
    if (!ok) replies_.clear();
    WriteNext();
    if (!writing_ && reads_ended_) Finish(grpc::Status::OK);
  }

  void OnDone() override { delete this; }

 private:
  // The canned body behind the request's id, which our client writes first.
  grpc::ByteBuffer ReplyTo(const grpc::ByteBuffer& request) const {
    client::SliceCursor cursor(request);
    int field = 0;
    int wire_type = 0;
    std::uint64_t id = 0;
    if (cursor.ReadTag(field, wire_type) && field == v1::DecodeRequest::kRequestIdFieldNumber) {
      cursor.ReadVarint(id);
    }
    v1::DecodeResponse head;
    head.set_request_id(id);
    head.mutable_status();
    const grpc::Slice slices[] = {grpc::Slice(head.SerializeAsString()), body_};
    return {slices, 2};
  }
  void WriteNext() {
    if (writing_ || replies_.empty()) return;
    writing_ = true;
    StartWrite(&replies_.front());
  }

  const grpc::Slice body_;
  std::atomic<std::int64_t>& request_bytes_;
  grpc::ByteBuffer request_;
  std::mutex mutex_;
  std::deque<grpc::ByteBuffer> replies_;
  bool writing_ = false;
  bool reads_ended_ = false;
};

class EchoService final : public EchoBase {
 public:
  explicit EchoService(const grpc::Slice& body) : body_(body) {}

  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override {
    return Echo(context, *request, response);
  }
  grpc::ServerUnaryReactor* Decode(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override {
    return Echo(context, *request, response);
  }
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DecodeStream(
      grpc::CallbackServerContext*) override {
    return new EchoStream(body_, request_bytes_);
  }
  grpc::ServerUnaryReactor* CreateSequence(grpc::CallbackServerContext* context,
                                           const v1::CreateSequenceRequest* request,
                                           v1::CreateSequenceResponse* response) override {
    // Ids of the real length: they travel in every step.
    response->set_sequence_id(std::string(24, 'e'));
    response->set_max_tokens(request->max_tokens());
    return Finished(context);
  }
  grpc::ServerUnaryReactor* DeleteSequences(grpc::CallbackServerContext* context,
                                            const v1::DeleteSequencesRequest*,
                                            v1::DeleteSequencesResponse*) override {
    return Finished(context);
  }

  std::int64_t request_bytes() const { return request_bytes_; }

 private:
  static grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
    request_bytes_ = static_cast<std::int64_t>(request.Length());
    *response = grpc::ByteBuffer(&body_, 1);
    return Finished(context);
  }

  const grpc::Slice body_;
  std::atomic<std::int64_t> request_bytes_{0};
};

// o with the shape of q; zeros, whose values do not matter.
absl::Status FillOutput(const Scenario& scenario, v1::Tensor& o) {
  o.set_data_type(scenario.data_type);
  const std::vector<std::int64_t> shape{TokensPerRequest(scenario), scenario.heads,
                                        scenario.head_dim};
  for (const std::int64_t dimension : shape) o.add_shape(dimension);
  const absl::StatusOr<std::int64_t> bytes = client::TensorBytes(o.data_type(), shape);
  if (!bytes.ok()) return bytes.status();
  o.mutable_data()->resize(static_cast<std::size_t>(*bytes));
  return absl::OkStatus();
}

// What a reply of attnd carries beside o; the values do not matter, their size does.
void SetExecution(v1::ExecutionInfo& execution) {
  execution.add_kernels("echo/without_any_kernel");
  execution.set_num_splits(1);
  execution.set_batch_requests(1);
  execution.set_batch_tokens(1);
  execution.mutable_queue_time();
  execution.mutable_kernel_time();
}

class RunningEchoServer final : public EchoServer {
 public:
  explicit RunningEchoServer(const std::string& body) : body_(body), service_(body_) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~RunningEchoServer() override {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
  }

  bool running() const { return server_ != nullptr && port_ > 0; }
  std::string target() const override { return absl::StrCat("127.0.0.1:", port_); }
  std::int64_t request_bytes() const override { return service_.request_bytes(); }
  std::int64_t reply_bytes() const override { return static_cast<std::int64_t>(body_.size()); }

 private:
  const grpc::Slice body_;
  EchoService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start(const Scenario& scenario) {
  client::HoldGrpc();
  std::string body;
  // The two responses have o and execution under numbers of their own.
  if (scenario.kind == Kind::kAttend) {
    v1::AttendResponse response;
    absl::Status status = FillOutput(scenario, *response.mutable_o());
    if (!status.ok()) return status;
    SetExecution(*response.mutable_execution());
    body = response.SerializeAsString();
  } else {
    v1::DecodeResponse response;
    absl::Status status = FillOutput(scenario, *response.mutable_o());
    if (!status.ok()) return status;
    SetExecution(*response.mutable_execution());
    body = response.SerializeAsString();
  }
  auto server = std::make_unique<RunningEchoServer>(body);
  if (!server->running()) return absl::UnavailableError("the echo server found no port");
  return server;
}

}  // namespace attnd::loadtest
