#include "server/library_logs.h"

#include <google/protobuf/stubs/common.h>
#include <grpc/grpc.h>
#include <grpcpp/version_info.h>

#include "server/logging.h"

// Later versions log through Abseil, which the supported distributions do not have.
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65
#include <grpc/support/log.h>
#define ATTND_GRPC_LOG_FUNCTION 1
#endif
#if GOOGLE_PROTOBUF_VERSION < 4022000
#include <google/protobuf/stubs/logging.h>
#define ATTND_PROTOBUF_LOG_HANDLER 1
#endif

namespace attnd {
namespace {

#ifdef ATTND_GRPC_LOG_FUNCTION
void LogFromGrpc(gpr_log_func_args* message) {
  // gRPC calls errors what a client's broken connection causes.
  const LogLevel level =
      message->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarn : LogLevel::kDebug;
  Log(level, "grpc", {{"message", message->message}});
}
#endif

}  // namespace

void CaptureLibraryLogs() {
#ifdef ATTND_GRPC_LOG_FUNCTION
  gpr_set_log_function(&LogFromGrpc);
#endif
#ifdef ATTND_PROTOBUF_LOG_HANDLER
  // It tells of strings that are not UTF-8: the request is answered, that is enough.
  google::protobuf::SetLogHandler(nullptr);
#endif
}

}  // namespace attnd
