// Decode requests over one HTTP/2 stream, many in flight, each answered exactly once by its
// callback.
//
// The stream opens with the first request. When it breaks (the connection drops, the server
// restarts or ends it), it is reopened after a back-off and every unanswered request is sent again,
// in the order of submission; position and epoch make that safe. A reply that names a retry delay
// is tried again on the same terms as a unary call (retry_policy.h). A stream that breaks for good,
// or more often than the policy allows, answers all with the stream's status; the next request
// opens a new one.
//
// Thread-safe. Callbacks run one after the other on the transport's thread of the connection, which
// also reads and writes; answers of timers, of Cancel and of what cannot be sent come on other
// threads, beside them. They must not block and must not destroy the stream or its client; they may
// submit. Requests beyond the server's limits.max_in_flight_per_stream wait in its socket.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "client/attention_types.h"
#include "client/retry_policy.h"
#include "client/time_source.h"
#include "client/transport.h"
#include "client/wire_decoder.h"

namespace attnd::client {

struct DecodeStreamOptions {
  std::shared_ptr<Transport> transport;
  std::shared_ptr<RetryPolicy> retry;
  std::shared_ptr<TimeSource> time;
  Duration default_timeout = std::chrono::seconds(30);  // of requests that name none
  TensorBytesPolicy reply_tensors = TensorBytesPolicy::kCopy;
  int connection = -1;  // of the transport; -1: the next one at each opening
};

class DecodeStream {
 public:
  using Callback = absl::AnyInvocable<void(absl::StatusOr<DecodeResult>)>;

  explicit DecodeStream(DecodeStreamOptions options);
  // Answers what is unanswered with CANCELLED and returns when no callback runs any more.
  ~DecodeStream();
  DecodeStream(const DecodeStream&) = delete;
  DecodeStream& operator=(const DecodeStream&) = delete;

  // `timeout` counts from now, repetitions included; the server learns of it too.
  void Submit(DecodeRequest request, Callback done, std::optional<Duration> timeout = {});
  std::future<absl::StatusOr<DecodeResult>> Submit(DecodeRequest request,
                                                   std::optional<Duration> timeout = {});

  // Answers what is unanswered with CANCELLED and ends the gRPC stream; the next request opens one.
  void Cancel();

  std::int64_t in_flight() const;
  // Streams opened after the first one.
  std::int64_t reopened() const;

 private:
  class Core;
  class StreamCall;
  std::shared_ptr<Core> core_;
};

}  // namespace attnd::client
