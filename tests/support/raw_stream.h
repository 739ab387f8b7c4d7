// A call of raw bytes, valid messages or not, each when the test wants: a DecodeStream, or a unary
// method message by message.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace attnd::testing {

class RawStream {
 public:
  explicit RawStream(std::shared_ptr<grpc::Channel> channel,
                     const std::string& method = "DecodeStream")
      : stub_(std::move(channel)),
        call_(stub_.PrepareCall(&context_, "/attnd.v1.AttentionService/" + method, &queue_)) {
    call_->StartCall(&started_);
    EXPECT_TRUE(Await(&started_));
  }
  ~RawStream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  // False: the stream has ended, or nothing more is taken; then it is blocked for ever.
  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), &written_);
    void* tag = nullptr;
    bool ok = false;
    const auto limit = std::chrono::system_clock::now() + std::chrono::milliseconds(200);
    blocked_ = queue_.AsyncNext(&tag, &ok, limit) != grpc::CompletionQueue::GOT_EVENT;
    return !blocked_ && ok;
  }
  bool blocked() const { return blocked_; }
  void WritesDone() {
    call_->WritesDone(&ended_);
    Await(&ended_);
  }
  void Cancel() { context_.TryCancel(); }
  bool Read() {
    grpc::ByteBuffer reply;
    call_->Read(&reply, &read_);
    return Await(&read_);
  }
  // Once every reply has been read.
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, &finished_);
    Await(&finished_);
    return status;
  }

 private:
  // Passes over a Write that was blocked.
  bool Await(const char* awaited) {
    void* tag = nullptr;
    bool ok = false;
    const auto limit = std::chrono::system_clock::now() + std::chrono::seconds(10);
    while (tag != awaited) {
      if (queue_.AsyncNext(&tag, &ok, limit) == grpc::CompletionQueue::GOT_EVENT) continue;
      ADD_FAILURE() << "the stream hangs";
      return false;
    }
    return ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool blocked_ = false;
  char started_ = 0, written_ = 0, read_ = 0, finished_ = 0, ended_ = 0;  // tags
};

}  // namespace attnd::testing
