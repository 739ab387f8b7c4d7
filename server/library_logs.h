// What gRPC and protobuf would print on stderr goes through the server's own log, so that every
// line has its format and what clients send cannot fill it.
#pragma once

namespace attnd {

// Called once, after SetUpLogging and before the first use of gRPC.
void CaptureLibraryLogs();

}  // namespace attnd
