#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/attnctl/command.h"
#include "client/attnctl/tensor_files.h"
#include "client/merge_states.h"

namespace attnd::client::attnctl {
namespace {

struct MergeFlags {
  std::vector<std::string> o, lse;
  std::vector<float> sink_logits;
  std::string type = "fp32";
  std::string out, lse_out;
};

int Run(const Session& session, const MergeFlags& flags) {
  if (flags.o.size() != flags.lse.size()) {
    return FailUsage(session, absl::InvalidArgumentError(absl::StrCat(
                                  "got ", flags.o.size(), " of --o and ", flags.lse.size(),
                                  " of --lse, need as many of both")));
  }
  std::vector<PartialState> parts;
  for (std::size_t i = 0; i < flags.o.size(); ++i) {
    const absl::StatusOr<Tensor> o = LoadTensor(flags.o[i]);
    if (!o.ok()) return FailUsage(session, o.status());
    const absl::StatusOr<Tensor> lse = LoadTensor(flags.lse[i]);
    if (!lse.ok()) return FailUsage(session, lse.status());
    parts.push_back({*o, *lse});
  }
  const absl::StatusOr<v1::DataType> type = ParseDataType(flags.type);
  if (!type.ok()) return FailUsage(session, type.status());
  const absl::StatusOr<MergedState> merged = MergeStates(parts, flags.sink_logits, *type);
  if (!merged.ok()) return FailUsage(session, merged.status());
  for (const auto& [specification, tensor] :
       {std::pair(flags.out, &merged->o), std::pair(flags.lse_out, &merged->lse)}) {
    if (absl::Status status = SaveTensor(specification, *tensor); !status.ok()) {
      return FailUsage(session, status);
    }
  }
  if (session.json) {
    PrintJson({{"o", TensorJson(merged->o)}, {"lse", TensorJson(merged->lse)}});
  } else {
    std::printf("o        %s\nlse      %s\n", DescribeTensor(merged->o).c_str(),
                DescribeTensor(merged->lse).c_str());
  }
  return kExitOk;
}

}  // namespace

void AddMerge(CLI::App& app, Session& session) {
  auto flags = std::make_shared<MergeFlags>();
  CLI::App* command = app.add_subcommand(
      "merge", "merge partial results over disjoint KV ranges exactly; needs no server");
  command->add_option("--o", flags->o, "o of each part, in ascending KV order (repeat)")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--lse", flags->lse, "lse of each part, in the same order (repeat)")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--sink_logits", flags->sink_logits, "one a query head, by commas")
      ->delimiter(',');
  command->add_option("--type", flags->type, "of the merged o: fp32, fp16 or bf16")
      ->capture_default_str();
  command->add_option("--out", flags->out, "write o here");
  command->add_option("--lse_out", flags->lse_out, "write lse here");
  command->callback(
      [&session, flags] { session.run = [&session, flags] { return Run(session, *flags); }; });
}

}  // namespace attnd::client::attnctl
