// One DecodeStream call: reads requests while fewer than max_in_flight_per_stream are unanswered,
// submits each in message order, writes replies one at a time in order of completion.
//
// A request counts as unanswered until its reply has been written, so that a client that does not
// read bounds its own stream's memory. A request that parses but is not valid is answered with its
// Status; one that does not parse ends the stream once what was admitted before has been answered.
//
// Threads: reactions on gRPC's threads, completions on the backend's, EndByServer on any. Whoever
// changes the state calls Advance, which starts the operations that have become possible.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/attention_request.h"
#include "server/inline_reactor.h"
#include "server/mutex.h"
#include "server/open_streams.h"
#include "server/reply_encoder.h"
#include "server/service_state.h"

namespace attnd {

class DecodeStream final
    : public InlineReactor<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>,
      public EndableStream,
      public std::enable_shared_from_this<DecodeStream> {
 public:
  // Owns itself until gRPC is done with it.
  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(
      ServiceState& state, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void EndByServer() override;

 private:
  struct Message {
    std::uint64_t index = 0;  // of the message on the stream
    std::uint64_t request_id = 0;
    CallTiming timing;
    ReplyShape shape;
  };

  DecodeStream(ServiceState& state, grpc::CallbackServerContext* context);
  // Not OK: the message cannot be answered by itself, the stream ends with this.
  absl::Status Process(const grpc::ByteBuffer& wire);
  absl::Status EndWith(const Message& message, absl::Status status);
  void Submit(const Message& message, AttentionRequest request);
  void Complete(const Message& message, const AttentionResult& result);
  // Queues the reply and takes the message out of those in flight.
  void Answer(const Message& message, const absl::Status& status, grpc::ByteBuffer reply);
  // No more reads; the stream ends with `status` unless an earlier reason stands.
  void EndReads(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Advance();
  bool CanRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanFinish() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ServiceState& state_;
  const LiveCall live_;
  grpc::CallbackServerContext* const context_;
  const std::string tenant_;
  const CallTiming timing_;  // of the whole stream
  std::shared_ptr<DecodeStream> self_;
  grpc::ByteBuffer incoming_;  // touched by the outstanding read and its reaction only

  Mutex mutex_;
  std::uint64_t num_messages_ ABSL_GUARDED_BY(mutex_) = 0;
  // Admitted and not answered; the ticket is 0 until Submit has returned.
  absl::flat_hash_map<std::uint64_t, Ticket> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> replies_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // A thread is inside StartWrite. The write may be done before that returns; the next one waits
  // for the return all the same, so that two threads are never in gRPC's write operation at once.
  bool write_starting_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Threads between the decision to start an operation and its start. Finish waits for them: after
  // it, gRPC may free the stream that they are about to use.
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd
