// attnctl: the command-line client of attnd.
#include <CLI/CLI.hpp>

#include "client/attnctl/command.h"
#include "client/flag_checks.h"

namespace attnd::client::attnctl {
namespace {

void AddSessionFlags(CLI::App& app, Session& session) {
  app.add_option("--server", session.server, "host:port or unix:/path")->capture_default_str();
  app.add_option("--admin", session.admin, "host:port of the admin port, for drain")
      ->capture_default_str();
  app.add_option("--timeout", session.timeout_seconds, "seconds of a call, retries included")
      ->capture_default_str()
      ->check(AboveZero());
  app.add_option("--tenant", session.tenant, "sent as attnd-tenant");
  app.add_option("--route", session.route, "sent as attnd-route, for proxies that hash it");
  app.add_option("--token", session.token, "sent as a bearer token");
  app.add_flag("--json", session.json, "JSON on standard output, for scripts");
}

int Main(int argc, char** argv) {
  CLI::App app{"attnctl: command-line client of attnd", "attnctl"};
  app.set_version_flag("--version", "attnctl " ATTND_VERSION);
  app.require_subcommand(1);
  // The flags above may stand before or after the subcommand.
  app.fallthrough();
  app.footer(
      "Tensors: file.npy, or file.safetensors:name. fp32, fp16, bf16 (in .npy: '|V2').\n"
      "Exit codes: 0 done; 1 refused by the server, or out of --tolerance; 2 wrong flags or files; "
      "3 no server, or no answer in time.");
  Session session;
  AddSessionFlags(app, session);
  AddInfo(app, session);
  AddAttend(app, session);
  AddDecode(app, session);
  AddSequences(app, session);
  AddMerge(app, session);
  AddDrain(app, session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ReportParseEnd(app, error) ? kExitOk : kExitUsage;
  }
  return session.run();
}

}  // namespace
}  // namespace attnd::client::attnctl

int main(int argc, char** argv) { return attnd::client::attnctl::Main(argc, argv); }
