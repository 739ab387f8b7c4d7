// A gRPC server in this process that answers by script: statuses, pushback, broken streams, replies
// that wait for a gate. Where the script says nothing, Attend and Decode answer o = q.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "attnd/v1/rpc_status.pb.h"
#include "grpcpp/grpcpp.h"

namespace attnd::client {

struct ScriptedAnswer {
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::optional<v1::ErrorDetail> detail;
  std::optional<std::string> pushback;  // value of grpc-retry-pushback-ms
};

class FakeAttentionServer {
 public:
  // Port 0 picks one; a fixed port lets a test restart the server where it was.
  explicit FakeAttentionServer(int port = 0) : service_(*this) { Start(port); }
  ~FakeAttentionServer() { Stop(); }
  FakeAttentionServer(const FakeAttentionServer&) = delete;
  FakeAttentionServer& operator=(const FakeAttentionServer&) = delete;

  void Start(int port) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  // Calls in flight are cut off.
  void Stop() {
    OpenGate();
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  int port() const { return port_; }
  std::string target() const { return "127.0.0.1:" + std::to_string(port_); }

  // Answers of the next unary calls, and of the next requests on streams, in order.
  void Script(std::vector<ScriptedAnswer> answers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    script_.insert(script_.end(), answers.begin(), answers.end());
  }
  // Decides by the number of the call (from 0) once the script is used up.
  void SetRule(std::function<ScriptedAnswer(std::int64_t)> rule) {
    const std::lock_guard<std::mutex> lock(mutex_);
    rule_ = std::move(rule);
  }
  // The n-th stream (from 0) answers `breaks[n].first` requests, reads one more, and ends with the
  // status; below 0 it reads none. Further streams do not break.
  void BreakStreams(std::vector<std::pair<int, grpc::Status>> breaks) {
    const std::lock_guard<std::mutex> lock(mutex_);
    breaks_ = std::move(breaks);
  }
  void FailRenewal(const std::string& sequence_id, const v1::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    v1::SequenceFailure failure;
    failure.set_sequence_id(sequence_id);
    *failure.mutable_status() = status;
    renewal_failures_.push_back(failure);
  }
  // Calls wait until OpenGate.
  void CloseGate() {
    const std::lock_guard<std::mutex> lock(mutex_);
    gate_closed_ = true;
  }
  void OpenGate() {
    const std::lock_guard<std::mutex> lock(mutex_);
    gate_closed_ = false;
    changed_.notify_all();
  }

  std::int64_t calls() const { return calls_.load(); }
  void AwaitCalls(std::int64_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return calls_.load() >= count; });
  }
  int streams() const { return streams_.load(); }
  // Every request that came over streams, in order of arrival.
  std::vector<v1::DecodeRequest> stream_requests() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stream_requests_;
  }
  std::vector<v1::RenewSequencesRequest> renewals() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return renewals_;
  }
  std::vector<std::string> creation_keys() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return creation_keys_;
  }
  std::vector<std::string> peers() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peers_;
  }

 private:
  ScriptedAnswer NextAnswer(std::int64_t call) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !gate_closed_; });
    if (!script_.empty()) {
      ScriptedAnswer answer = script_.front();
      script_.pop_front();
      return answer;
    }
    return rule_ ? rule_(call) : ScriptedAnswer{};
  }

  // The status of a unary call by the script; trailers as the real server sends them.
  grpc::Status AnswerUnary(grpc::ServerContext* context) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      peers_.push_back(context->peer());
    }
    const ScriptedAnswer answer = NextAnswer(calls_.fetch_add(1));
    if (answer.pushback) context->AddTrailingMetadata("grpc-retry-pushback-ms", *answer.pushback);
    if (answer.code == grpc::StatusCode::OK) return grpc::Status::OK;
    std::string envelope;
    if (answer.detail) {
      v1::RpcStatus rpc_status;
      rpc_status.set_code(answer.code);
      rpc_status.set_message("scripted");
      rpc_status.add_details()->PackFrom(*answer.detail);
      envelope = rpc_status.SerializeAsString();
    }
    return {answer.code, "scripted", envelope};
  }

  class Service final : public v1::AttentionService::Service {
   public:
    explicit Service(FakeAttentionServer& owner) : owner_(owner) {}

    grpc::Status Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                        v1::AttendResponse* response) override {
      *response->mutable_o() = request->q();
      response->mutable_execution()->add_kernels("fake/attend");
      response->mutable_execution()->mutable_kernel_time()->set_nanos(1000);
      return owner_.AnswerUnary(context);
    }
    grpc::Status Decode(grpc::ServerContext* context, const v1::DecodeRequest* request,
                        v1::DecodeResponse* response) override {
      Fill(*request, *response);
      return owner_.AnswerUnary(context);
    }
    grpc::Status CreateSequence(grpc::ServerContext* context,
                                const v1::CreateSequenceRequest* request,
                                v1::CreateSequenceResponse* response) override {
      {
        const std::lock_guard<std::mutex> lock(owner_.mutex_);
        owner_.creation_keys_.push_back(request->creation_key());
        std::string id(24, 's');
        id[23] = static_cast<char>('0' + owner_.creation_keys_.size() % 64);
        response->set_sequence_id(id);
      }
      return owner_.AnswerUnary(context);
    }
    grpc::Status DeleteSequences(grpc::ServerContext*, const v1::DeleteSequencesRequest*,
                                 v1::DeleteSequencesResponse*) override {
      return grpc::Status::OK;
    }
    grpc::Status RenewSequences(grpc::ServerContext* context,
                                const v1::RenewSequencesRequest* request,
                                v1::RenewSequencesResponse* response) override {
      {
        const std::lock_guard<std::mutex> lock(owner_.mutex_);
        owner_.renewals_.push_back(*request);
        for (const auto& failure : owner_.renewal_failures_) {
          for (const std::string& id : request->sequence_ids()) {
            if (id == failure.sequence_id()) *response->add_failures() = failure;
          }
        }
      }
      return owner_.AnswerUnary(context);
    }
    grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest*,
                               v1::GetServerInfoResponse* response) override {
      response->set_version("fake");
      return owner_.AnswerUnary(context);
    }
    grpc::Status DecodeStream(
        grpc::ServerContext*,
        grpc::ServerReaderWriter<v1::DecodeResponse, v1::DecodeRequest>* stream) override {
      const auto index = static_cast<std::size_t>(owner_.streams_.fetch_add(1));
      std::optional<std::pair<int, grpc::Status>> end;
      {
        const std::lock_guard<std::mutex> lock(owner_.mutex_);
        if (index < owner_.breaks_.size()) end = owner_.breaks_[index];
      }
      if (end.has_value() && end->first < 0) return end->second;
      v1::DecodeRequest request;
      for (int read = 0; stream->Read(&request); ++read) {
        {
          const std::lock_guard<std::mutex> lock(owner_.mutex_);
          owner_.stream_requests_.push_back(request);
        }
        const std::int64_t call = owner_.calls_.fetch_add(1);
        if (end && read >= end->first) return end->second;
        const ScriptedAnswer answer = owner_.NextAnswer(call);
        v1::DecodeResponse response;
        if (answer.code == grpc::StatusCode::OK) Fill(request, response);
        response.set_request_id(request.request_id());
        response.mutable_status()->set_code(answer.code);
        if (answer.detail) *response.mutable_status()->mutable_detail() = *answer.detail;
        stream->Write(response);
      }
      return grpc::Status::OK;
    }

   private:
    static void Fill(const v1::DecodeRequest& request, v1::DecodeResponse& response) {
      if (request.has_q()) *response.mutable_o() = request.q();
      response.mutable_execution()->add_kernels("fake/decode");
      response.mutable_execution()->mutable_kernel_time()->set_nanos(1000);
    }
    FakeAttentionServer& owner_;
  };

  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ScriptedAnswer> script_;
  std::function<ScriptedAnswer(std::int64_t)> rule_;
  std::vector<std::pair<int, grpc::Status>> breaks_;
  std::vector<v1::SequenceFailure> renewal_failures_;
  bool gate_closed_ = false;
  std::atomic<std::int64_t> calls_{0};
  std::atomic<int> streams_{0};
  std::vector<v1::DecodeRequest> stream_requests_;
  std::vector<v1::RenewSequencesRequest> renewals_;
  std::vector<std::string> creation_keys_;
  std::vector<std::string> peers_;
};

// An ErrorDetail whose retry_delay is set where `delay` is given.
inline v1::ErrorDetail DetailWithDelay(v1::Reason reason,
                                       std::optional<std::chrono::milliseconds> delay = {}) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_step_index(-1);
  if (delay) {
    detail.mutable_retry_delay()->set_seconds(delay->count() / 1000);
    detail.mutable_retry_delay()->set_nanos(static_cast<int>(delay->count() % 1000 * 1'000'000));
  }
  return detail;
}

}  // namespace attnd::client
