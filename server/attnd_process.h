// The process attnd: flags -> configuration -> server -> signals -> exit code.
//
// 0: stopped on request. 1: could not serve, a second signal, or not stopped within --stop_limit.
// 2: bad flags or configuration, also where only the build or the machine shows it.
// 3: the device has failed; a new process may find it well again.
#pragma once

#include "server/attnd_server.h"

namespace attnd {

// All that main does, once a process: it takes over SIGTERM and SIGINT and may end the process
// without returning. `hooks` are for test programs that are attnd but for their device.
int RunAttnd(int argc, char** argv, ServerHooks hooks = {});

}  // namespace attnd
