#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_join.h"
#include "client/attnctl/attention_flags.h"
#include "client/attnctl/command.h"
#include "client/attnctl/tensor_files.h"
#include "client/flag_checks.h"

namespace attnd::client::attnctl {
namespace {

struct DecodeFlags {
  std::string sequence;
  std::int32_t layer = 0;
  std::int64_t position = -1;  // negative: the layer's length, asked for first
  std::uint64_t epoch = 0;
  bool epoch_given = false;
  std::int64_t query_position = -1;
  std::int32_t num_tokens = 0;
  std::string q, k, v;
  std::string out, lse_out;
  DecodeRequest request;
};

absl::Status LoadInputs(DecodeFlags& flags) {
  for (const auto& [specification, tensor] :
       {std::pair(flags.q, &flags.request.q), std::pair(flags.k, &flags.request.k),
        std::pair(flags.v, &flags.request.v)}) {
    absl::StatusOr<Tensor> loaded = LoadTensor(specification);
    if (!loaded.ok()) return loaded.status();
    *tensor = *std::move(loaded);
  }
  const Tensor& rows = flags.request.q.present() ? flags.request.q : flags.request.k;
  if (!rows.present() || rows.shape.empty()) {
    return absl::InvalidArgumentError("give --q, or --k and --v, or all three");
  }
  if (flags.num_tokens == 0) flags.num_tokens = static_cast<std::int32_t>(rows.shape[0]);
  return absl::OkStatus();
}

// The step; position and epoch that the flags leave open are the layer's own.
absl::StatusOr<v1::Step> MakeStep(const Session& session, AttentionClient& client,
                                  const DecodeFlags& flags, const std::string& id) {
  v1::Step step;
  step.set_sequence_id(id);
  step.set_layer(flags.layer);
  step.set_num_tokens(flags.num_tokens);
  step.set_position(flags.position);
  step.set_epoch(flags.epoch);
  if (flags.query_position >= 0) step.set_query_position(flags.query_position);
  if (flags.position >= 0 && flags.epoch_given) return step;
  v1::GetSequenceRequest request;
  request.set_sequence_id(id);
  const absl::StatusOr<v1::Sequence> sequence = client.GetSequence(request, session.call());
  if (!sequence.ok()) return sequence.status();
  // A layer out of range is the server's to refuse.
  if (flags.layer < 0 || flags.layer >= sequence->layer_tokens_size()) {
    step.set_position(std::max<std::int64_t>(0, flags.position));
    return step;
  }
  if (flags.position < 0) step.set_position(sequence->layer_tokens(flags.layer));
  if (!flags.epoch_given) step.set_epoch(sequence->layer_epochs(flags.layer));
  return step;
}

void Print(const Session& session, const v1::Step& step, const DecodeResult& result) {
  if (session.json) {
    nlohmann::json failures = nlohmann::json::array();
    for (const v1::StepFailure& failure : result.failed_steps) {
      failures.push_back({{"step_index", failure.step_index()},
                          {"status", ErrorJson(StatusFromProto(failure.status()))}});
    }
    PrintJson({{"position", step.position()},
               {"epoch", step.epoch()},
               {"num_tokens", step.num_tokens()},
               {"o", TensorJson(result.o)},
               {"lse", TensorJson(result.lse)},
               {"failed_steps", failures},
               {"execution", MessageJson(result.execution)}});
    return;
  }
  std::printf("step     position %lld, %d tokens, epoch %llu\n",
              static_cast<long long>(step.position()), step.num_tokens(),
              static_cast<unsigned long long>(step.epoch()));
  std::printf("o        %s\n", DescribeTensor(result.o).c_str());
  std::printf("lse      %s\n", DescribeTensor(result.lse).c_str());
  std::printf("kernels  %s\n", absl::StrJoin(result.execution.kernels(), ", ").c_str());
  std::printf("time     %.3f ms in kernels, %.3f ms in the queue\n",
              SecondsOf(result.execution.kernel_time()) * 1e3,
              SecondsOf(result.execution.queue_time()) * 1e3);
}

int Run(const Session& session, DecodeFlags& flags) {
  const absl::StatusOr<std::string> id = IdFromHex(flags.sequence);
  if (!id.ok()) return FailUsage(session, id.status());
  if (absl::Status status = LoadInputs(flags); !status.ok()) return FailUsage(session, status);
  for (const std::string& output : {flags.out, flags.lse_out}) {
    if (absl::Status status = CheckOutput(output); !status.ok()) return FailUsage(session, status);
  }
  if (!flags.lse_out.empty()) flags.request.return_lse = true;

  AttentionClient client(session.MakeClientOptions());
  const absl::StatusOr<v1::Step> step = MakeStep(session, client, flags, *id);
  if (!step.ok()) return Fail(session, step.status());
  flags.request.steps = {*step};
  const absl::StatusOr<DecodeResult> result = client.Decode(flags.request, session.call());
  if (!result.ok()) return Fail(session, result.status());
  for (const auto& [specification, tensor] :
       {std::pair(flags.out, &result->o), std::pair(flags.lse_out, &result->lse)}) {
    if (absl::Status status = SaveTensor(specification, *tensor); !status.ok()) {
      std::fprintf(stderr, "attnctl: the step is done; --position %lld gives its output again\n",
                   static_cast<long long>(step->position()));
      return FailUsage(session, status);
    }
  }
  Print(session, *step, *result);
  return kExitOk;
}

}  // namespace

void AddDecode(CLI::App& app, Session& session) {
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command = app.add_subcommand(
      "decode",
      "append K/V to a sequence and attend; without --q append only, without --k and "
      "--v attend to what is cached");
  command->add_option("--sequence", flags->sequence, "id in hexadecimal")->required();
  command->add_option("--layer", flags->layer, "of the sequence")->capture_default_str();
  command
      ->add_option("--position", flags->position,
                   "index of the first new token (default: the layer's length)")
      ->check(NotNegative());
  command->add_option_function<std::uint64_t>(
      "--epoch",
      [flags](std::uint64_t epoch) {
        flags->epoch = epoch;
        flags->epoch_given = true;
      },
      "your count of rollbacks (default: the layer's)");
  command
      ->add_option("--query_position", flags->query_position,
                   "attend only: the first query's place on the sequence's axis")
      ->check(NotNegative());
  command->add_option("--num_tokens", flags->num_tokens, "rows of this step (default: all)")
      ->check(AboveZero());
  command->add_option("--q", flags->q, "[tokens, num_heads, head_dim], file as in attend");
  command->add_option("--k", flags->k, "[tokens, num_kv_heads, head_dim]");
  command->add_option("--v", flags->v, "as k");
  command->add_option("--out", flags->out, "write o here");
  command->add_option("--lse_out", flags->lse_out, "write lse here");
  command->add_flag("--return_lse", flags->request.return_lse, "ask for lse");
  command->add_flag("--partial", flags->request.partial,
                    "o in fp32 and lse, for `merge`; sinks left out");
  AddExecutionFlags(*command, flags->request.execution);
  command->callback(
      [&session, flags] { session.run = [&session, flags] { return Run(session, *flags); }; });
}

}  // namespace attnd::client::attnctl
