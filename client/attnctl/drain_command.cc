// httplib before gRPC's headers would drag its macros into them; it is used here alone.
#include <httplib.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "client/attnctl/command.h"
#include "client/http_failure.h"

namespace attnd::client::attnctl {
namespace {

int Run(const Session& session) {
  httplib::Client http("http://" + session.admin);
  const auto seconds =
      static_cast<time_t>(std::min(session.timeout_seconds, kLongestTimeoutSeconds));
  http.set_connection_timeout(seconds > 0 ? seconds : 1);
  http.set_read_timeout(seconds > 0 ? seconds : 1);
  const httplib::Result result = http.Post("/drain");
  if (!result) {
    return Fail(session, absl::UnavailableError(absl::StrCat("no admin port at ", session.admin,
                                                             ": ", HttpFailure(result.error()))));
  }
  if (result->status < 200 || result->status >= 300) {
    return Fail(session, absl::FailedPreconditionError(absl::StrCat(
                             "POST /drain: HTTP ", result->status, ": ", result->body)));
  }
  if (session.json) {
    PrintJson({{"draining", true}});
  } else {
    std::printf("%s is draining: no new sequences; it is done when none is left\n",
                session.admin.c_str());
  }
  return kExitOk;
}

}  // namespace

void AddDrain(CLI::App& app, Session& session) {
  CLI::App* command =
      app.add_subcommand("drain", "retire the server behind --admin: no new sequences or forks");
  command->callback([&session] { session.run = [&session] { return Run(session); }; });
}

}  // namespace attnd::client::attnctl
