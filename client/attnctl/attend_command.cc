#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/attnctl/attention_flags.h"
#include "client/attnctl/command.h"
#include "client/attnctl/tensor_files.h"
#include "client/flag_checks.h"

namespace attnd::client::attnctl {
namespace {

struct AttendFlags {
  std::string input, prefix;
  std::string q, k, v, bias;
  std::string out, lse_out, expected;
  double tolerance = -1;  // negative: only report
  AttendRequest request;
};

// q, k and v from their own flags, or from --input under --prefix.
absl::Status LoadInputs(AttendFlags& flags) {
  const auto name = [&](const std::string& own, const char* field) {
    return own.empty() && !flags.input.empty() ? flags.input + ":" + flags.prefix + field : own;
  };
  const std::pair<std::string, Tensor*> inputs[] = {{name(flags.q, "q"), &flags.request.q},
                                                    {name(flags.k, "k"), &flags.request.k},
                                                    {name(flags.v, "v"), &flags.request.v},
                                                    {flags.bias, &flags.request.bias}};
  for (const auto& [specification, tensor] : inputs) {
    absl::StatusOr<Tensor> loaded = LoadTensor(specification);
    if (!loaded.ok()) return loaded.status();
    *tensor = *std::move(loaded);
  }
  if (!flags.request.q.present() || !flags.request.k.present() || !flags.request.v.present()) {
    return absl::InvalidArgumentError("q, k and v: give --q, --k and --v, or --input");
  }
  return absl::OkStatus();
}

void Print(const Session& session, const AttendResult& result,
           const std::optional<Difference>& difference) {
  const v1::ExecutionInfo& execution = result.execution;
  if (session.json) {
    nlohmann::json json = {{"o", TensorJson(result.o)},
                           {"lse", TensorJson(result.lse)},
                           {"execution", MessageJson(execution)}};
    if (difference) {
      json["difference"] = {{"max_absolute", difference->max_absolute},
                            {"max_relative", difference->max_relative},
                            {"mismatched_specials", difference->mismatched_specials}};
    }
    PrintJson(json);
    return;
  }
  std::printf("o        %s\n", DescribeTensor(result.o).c_str());
  std::printf("lse      %s\n", DescribeTensor(result.lse).c_str());
  std::printf("kernels  %s\n", absl::StrJoin(execution.kernels(), ", ").c_str());
  std::printf("time     %.3f ms in kernels, %.3f ms in the queue, %d requests in the batch\n",
              SecondsOf(execution.kernel_time()) * 1e3, SecondsOf(execution.queue_time()) * 1e3,
              execution.batch_requests());
  if (difference) {
    std::printf(
        "expected max difference %.3g (%.3g of the largest value), %lld NaN or infinities "
        "elsewhere\n",
        difference->max_absolute, difference->max_relative,
        static_cast<long long>(difference->mismatched_specials));
  }
}

int Run(const Session& session, AttendFlags& flags) {
  if (absl::Status status = LoadInputs(flags); !status.ok()) return FailUsage(session, status);
  for (const std::string& output : {flags.out, flags.lse_out}) {
    if (absl::Status status = CheckOutput(output); !status.ok()) return FailUsage(session, status);
  }
  absl::StatusOr<Tensor> expected = LoadTensor(flags.expected);
  if (!expected.ok()) return FailUsage(session, expected.status());
  if (!flags.lse_out.empty()) flags.request.return_lse = true;

  AttentionClient client(session.MakeClientOptions());
  const absl::StatusOr<AttendResult> result = client.Attend(flags.request, session.call());
  if (!result.ok()) return Fail(session, result.status());
  for (const auto& [specification, tensor] :
       {std::pair(flags.out, &result->o), std::pair(flags.lse_out, &result->lse)}) {
    if (absl::Status status = SaveTensor(specification, *tensor); !status.ok()) {
      return FailUsage(session, status);
    }
  }
  std::optional<Difference> difference;
  if (expected->present()) {
    const absl::StatusOr<Difference> compared = Compare(result->o, *expected);
    if (!compared.ok()) return FailUsage(session, compared.status());
    difference = *compared;
  }
  Print(session, *result, difference);
  const bool too_far =
      difference && flags.tolerance >= 0 &&
      (difference->max_relative > flags.tolerance || difference->mismatched_specials > 0);
  if (too_far) {
    std::fprintf(stderr, "attnctl: the result differs by more than --tolerance\n");
    return kExitRefused;
  }
  return kExitOk;
}

}  // namespace

void AddAttend(CLI::App& app, Session& session) {
  auto flags = std::make_shared<AttendFlags>();
  CLI::App* command = app.add_subcommand(
      "attend", "stateless attention over tensors from files (file.npy or file.safetensors:name)");
  command->add_option("--input", flags->input,
                      "a .safetensors file that holds <prefix>q, <prefix>k and <prefix>v");
  command->add_option("--prefix", flags->prefix, "of the names in --input, e.g. layers.0.");
  command->add_option("--q", flags->q, "[tokens, num_heads, head_dim]");
  command->add_option("--k", flags->k, "[tokens, num_kv_heads, head_dim]");
  command->add_option("--v", flags->v, "as k");
  command->add_option("--bias", flags->bias, "fp32 [1 or num_heads, query tokens, kv tokens]");
  command->add_option("--out", flags->out, "write o here");
  command->add_option("--lse_out", flags->lse_out, "write lse here");
  CLI::Option* expected =
      command->add_option("--expected", flags->expected, "compare o with this tensor");
  command
      ->add_option("--tolerance", flags->tolerance,
                   "exit code 1 where the largest difference is more than this share of the "
                   "largest expected value")
      ->check(NotNegative())
      ->needs(expected);
  AttendRequest& request = flags->request;
  command->add_option("--query_lengths", request.query_lengths, "of a ragged batch, by commas")
      ->delimiter(',');
  command->add_option("--kv_lengths", request.kv_lengths, "of a ragged batch, by commas")
      ->delimiter(',');
  command->add_option("--query_positions", request.query_positions, "one a sequence, by commas")
      ->delimiter(',');
  command->add_option("--key_positions", request.key_positions, "one a sequence, by commas")
      ->delimiter(',');
  command->add_flag("--return_lse", request.return_lse, "ask for lse");
  command->add_flag("--partial", request.partial, "o in fp32 and lse, for `merge`; sinks left out");
  AddAttentionFlags(*command, request.options, /*for_sequences=*/false);
  AddExecutionFlags(*command, request.execution);
  command->callback(
      [&session, flags] { session.run = [&session, flags] { return Run(session, *flags); }; });
}

}  // namespace attnd::client::attnctl
