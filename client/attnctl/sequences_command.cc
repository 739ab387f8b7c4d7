#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_join.h"
#include "client/attnctl/attention_flags.h"
#include "client/attnctl/command.h"
#include "client/flag_checks.h"

namespace attnd::client::attnctl {
namespace {

using Json = nlohmann::json;

struct SequenceFlags {
  std::vector<std::string> ids;  // hexadecimal
  v1::CreateSequenceRequest create;
  v1::AttentionOptions options;
  v1::RopeOptions rope;
  bool rope_given = false;  // what is wrong in it is the server's to refuse
  std::string type = "fp32", kv_type;
  std::int64_t num_tokens = -1;
  std::int64_t reserve_tokens = 0;
  std::uint64_t epoch = 0;
  double lease_seconds = 0;  // 0: the server's default
};

Json SequenceJson(const v1::Sequence& sequence) {
  Json json = MessageJson(sequence);
  json["sequence_id"] = HexFromId(sequence.sequence_id());
  json["lease_remaining_seconds"] = SecondsOf(sequence.lease_remaining());
  return json;
}

void PrintHead() {
  std::printf("%-48s %6s %9s %8s %6s %12s %8s %9s\n", "sequence", "layers", "heads", "head_dim",
              "type", "tokens", "pages", "lease s");
}

void PrintRow(const v1::Sequence& sequence) {
  std::int64_t longest = 0;
  for (const std::int64_t tokens : sequence.layer_tokens()) longest = std::max(longest, tokens);
  std::printf(
      "%-48s %6d %6d/%-2d %8d %6s %12lld %8lld %9.0f\n", HexFromId(sequence.sequence_id()).c_str(),
      sequence.num_layers(), sequence.num_heads(), sequence.num_kv_heads(), sequence.head_dim(),
      std::string(DataTypeName(sequence.data_type())).c_str(), static_cast<long long>(longest),
      static_cast<long long>(sequence.device_pages()), SecondsOf(sequence.lease_remaining()));
}

// Ids as bytes; the first that is no id fails all.
absl::StatusOr<std::vector<std::string>> Ids(const SequenceFlags& flags) {
  std::vector<std::string> ids;
  for (const std::string& hex : flags.ids) {
    absl::StatusOr<std::string> id = IdFromHex(hex);
    if (!id.ok()) return id.status();
    ids.push_back(*std::move(id));
  }
  return ids;
}

int Create(const Session& session, SequenceFlags& flags) {
  const absl::StatusOr<v1::DataType> type = ParseDataType(flags.type);
  if (!type.ok()) return FailUsage(session, type.status());
  flags.create.set_data_type(*type);
  if (!flags.kv_type.empty()) {
    const absl::StatusOr<v1::DataType> kv_type = ParseDataType(flags.kv_type);
    if (!kv_type.ok()) return FailUsage(session, kv_type.status());
    flags.create.set_kv_data_type(*kv_type);
  }
  if (flags.create.num_kv_heads() == 0) flags.create.set_num_kv_heads(flags.create.num_heads());
  if (flags.lease_seconds > 0) SetDuration(flags.lease_seconds, *flags.create.mutable_lease());
  flags.create.set_reserve_tokens(flags.reserve_tokens);
  v1::LayerGroup& group = *flags.create.add_layer_groups();
  *group.mutable_options() = flags.options;
  if (flags.rope_given) *group.mutable_rope() = flags.rope;
  AttentionClient client(session.MakeClientOptions());
  const auto created = client.CreateSequence(flags.create, session.call());
  if (!created.ok()) return Fail(session, created.status());
  if (session.json) {
    PrintJson({{"sequence_id", HexFromId(created->sequence_id())},
               {"max_tokens", created->max_tokens()},
               {"lease_seconds", SecondsOf(created->lease())},
               {"server", created->server()}});
  } else {
    std::printf("%s\n", HexFromId(created->sequence_id()).c_str());
  }
  return kExitOk;
}

int List(const Session& session) {
  AttentionClient client(session.MakeClientOptions());
  Json all = Json::array();
  v1::ListSequencesRequest request;
  if (!session.json) PrintHead();
  do {
    const auto page = client.ListSequences(request, session.call());
    if (!page.ok()) return Fail(session, page.status());
    for (const v1::Sequence& sequence : page->sequences()) {
      if (session.json) {
        all.push_back(SequenceJson(sequence));
      } else {
        PrintRow(sequence);
      }
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  if (session.json) PrintJson({{"sequences", all}});
  return kExitOk;
}

int Get(const Session& session, const SequenceFlags& flags) {
  const auto ids = Ids(flags);
  if (!ids.ok()) return FailUsage(session, ids.status());
  AttentionClient client(session.MakeClientOptions());
  v1::GetSequenceRequest request;
  request.set_sequence_id(ids->front());
  const auto sequence = client.GetSequence(request, session.call());
  if (!sequence.ok()) return Fail(session, sequence.status());
  if (session.json) {
    PrintJson(SequenceJson(*sequence));
    return kExitOk;
  }
  PrintHead();
  PrintRow(*sequence);
  std::printf("layer tokens  %s\nlayer epochs  %s\n",
              absl::StrJoin(sequence->layer_tokens(), " ").c_str(),
              absl::StrJoin(sequence->layer_epochs(), " ").c_str());
  return kExitOk;
}

int Fork(const Session& session, const SequenceFlags& flags) {
  const auto ids = Ids(flags);
  if (!ids.ok()) return FailUsage(session, ids.status());
  AttentionClient client(session.MakeClientOptions());
  v1::ForkSequenceRequest request;
  request.set_sequence_id(ids->front());
  if (flags.num_tokens >= 0) request.set_num_tokens(flags.num_tokens);
  request.set_reserve_tokens(flags.reserve_tokens);
  if (flags.lease_seconds > 0) SetDuration(flags.lease_seconds, *request.mutable_lease());
  const auto forked = client.ForkSequence(request, session.call());
  if (!forked.ok()) return Fail(session, forked.status());
  if (session.json) {
    PrintJson({{"sequence_id", HexFromId(forked->sequence_id())},
               {"lease_seconds", SecondsOf(forked->lease())}});
  } else {
    std::printf("%s\n", HexFromId(forked->sequence_id()).c_str());
  }
  return kExitOk;
}

// Prints what each sequence of a bulk call came to; exit code 1 where one failed.
template <typename Response>
int ReportBulk(const Session& session, const SequenceFlags& flags,
               const absl::StatusOr<Response>& response) {
  if (!response.ok()) return Fail(session, response.status());
  Json failures = Json::array();
  for (const v1::SequenceFailure& failure : response->failures()) {
    const absl::Status status = StatusFromProto(failure.status());
    Json entry = ErrorJson(status);
    entry["sequence_id"] = HexFromId(failure.sequence_id());
    failures.push_back(entry);
    std::fprintf(stderr, "attnctl: %s: %s\n", HexFromId(failure.sequence_id()).c_str(),
                 ErrorText(status).c_str());
  }
  const std::size_t done = flags.ids.size() - failures.size();
  if (session.json) {
    PrintJson({{"succeeded", done}, {"failures", failures}});
  } else {
    std::printf("%zu of %zu sequences\n", done, flags.ids.size());
  }
  return failures.empty() ? kExitOk : kExitRefused;
}

template <typename Request>
absl::Status FillIds(const SequenceFlags& flags, Request& request) {
  const auto ids = Ids(flags);
  if (!ids.ok()) return ids.status();
  for (const std::string& id : *ids) request.add_sequence_ids(id);
  return absl::OkStatus();
}

int Truncate(const Session& session, const SequenceFlags& flags) {
  v1::TruncateSequencesRequest request;
  if (absl::Status status = FillIds(flags, request); !status.ok()) {
    return FailUsage(session, status);
  }
  request.set_num_tokens(flags.num_tokens);
  request.set_epoch(flags.epoch);
  AttentionClient client(session.MakeClientOptions());
  return ReportBulk(session, flags, client.TruncateSequences(request, session.call()));
}

int Renew(const Session& session, const SequenceFlags& flags) {
  v1::RenewSequencesRequest request;
  if (absl::Status status = FillIds(flags, request); !status.ok()) {
    return FailUsage(session, status);
  }
  if (flags.lease_seconds > 0) SetDuration(flags.lease_seconds, *request.mutable_lease());
  AttentionClient client(session.MakeClientOptions());
  return ReportBulk(session, flags, client.RenewSequences(request, session.call()));
}

int Delete(const Session& session, const SequenceFlags& flags) {
  v1::DeleteSequencesRequest request;
  if (absl::Status status = FillIds(flags, request); !status.ok()) {
    return FailUsage(session, status);
  }
  AttentionClient client(session.MakeClientOptions());
  return ReportBulk(session, flags, client.DeleteSequences(request, session.call()));
}

// One action of `sequences`; `action` sees the flags as parsed.
template <typename Run>
CLI::App* AddAction(CLI::App& sequences, Session& session,
                    const std::shared_ptr<SequenceFlags>& flags, const char* name, const char* help,
                    Run action) {
  CLI::App* command = sequences.add_subcommand(name, help);
  command->callback([&session, flags, action] {
    session.run = [&session, flags, action] { return action(session, *flags); };
  });
  return command;
}

void AddIds(CLI::App& command, SequenceFlags& flags, bool several) {
  command.add_option("ids", flags.ids, "sequence ids in hexadecimal")
      ->required()
      ->expected(1, several ? CLI::detail::expected_max_vector_size : 1);
}

void AddLease(CLI::App& command, SequenceFlags& flags) {
  command
      .add_option("--lease", flags.lease_seconds,
                  "seconds without a step until it expires (default: the server's)")
      ->check(AboveZero());
}

template <typename Setter>
CLI::Option* AddCount(CLI::App& command, const char* name, const char* help, Setter setter) {
  return command.add_option_function<std::int32_t>(name, setter, help)->check(AboveZero());
}

void AddCreateFlags(CLI::App& command, const std::shared_ptr<SequenceFlags>& flags) {
  v1::CreateSequenceRequest& create = flags->create;
  create.set_num_layers(1);
  AddCount(command, "--layers", "KV caches of the sequence (default 1)",
           [&create](std::int32_t value) { create.set_num_layers(value); });
  AddCount(command, "--heads", "query heads", [&create](std::int32_t value) {
    create.set_num_heads(value);
  })->required();
  AddCount(command, "--kv_heads", "a divisor of heads (default: heads)",
           [&create](std::int32_t value) { create.set_num_kv_heads(value); });
  AddCount(command, "--head_dim", "1 to 256", [&create](std::int32_t value) {
    create.set_head_dim(value);
  })->required();
  command.add_option("--type", flags->type, "of q, k, v and o: fp32, fp16 or bf16")
      ->capture_default_str();
  command.add_option("--kv_type", flags->kv_type, "of the cache (default: as --type)");
  command.add_option_function<std::int64_t>(
      "--max_tokens", [&create](std::int64_t value) { create.set_max_tokens(value); },
      "per layer (default: the server's limit)");
  command.add_option("--reserve_tokens", flags->reserve_tokens,
                     "per layer: memory set aside from the start");
  SequenceFlags* const given = flags.get();
  const auto rope = [given]() -> v1::RopeOptions& {
    given->rope_given = true;
    return given->rope;
  };
  command.add_option_function<float>(
      "--rope_theta", [rope](float value) { rope().set_theta(value); },
      "rotate q and k with this base (default: no rotation)");
  command.add_option_function<std::int32_t>(
      "--rope_dim", [rope](std::int32_t value) { rope().set_rotary_dim(value); },
      "dimensions that rotate (default: all)");
  command.add_flag_callback(
      "--rope_interleaved", [rope] { rope().set_interleaved(true); }, "pairs (2i, 2i+1)");
  AddAttentionFlags(command, flags->options, /*for_sequences=*/true);
  AddLease(command, *flags);
}

}  // namespace

void AddSequences(CLI::App& app, Session& session) {
  auto flags = std::make_shared<SequenceFlags>();
  CLI::App* sequences = app.add_subcommand("sequences", "KV caches on the server");
  sequences->require_subcommand(1);
  AddCreateFlags(*AddAction(*sequences, session, flags, "create", "prints the id", &Create), flags);
  AddAction(*sequences, session, flags, "list", "all of the tenant",
            [](const Session& own, SequenceFlags&) { return List(own); });
  AddIds(*AddAction(*sequences, session, flags, "get", "one, layer by layer", &Get), *flags, false);
  CLI::App* fork =
      AddAction(*sequences, session, flags, "fork", "copy on write; prints the new id", &Fork);
  AddIds(*fork, *flags, false);
  fork->add_option("--num_tokens", flags->num_tokens, "cut the copy to it (default: all)");
  fork->add_option("--reserve_tokens", flags->reserve_tokens, "memory set aside for the copy");
  AddLease(*fork, *flags);
  CLI::App* truncate =
      AddAction(*sequences, session, flags, "truncate", "cut every layer", &Truncate);
  AddIds(*truncate, *flags, true);
  truncate->add_option("--num_tokens", flags->num_tokens, "tokens that stay")
      ->required()
      ->check(NotNegative());
  truncate->add_option("--epoch", flags->epoch, "larger than every layer's")->required();
  CLI::App* renew = AddAction(*sequences, session, flags, "renew", "start leases anew", &Renew);
  AddIds(*renew, *flags, true);
  AddLease(*renew, *flags);
  AddIds(*AddAction(*sequences, session, flags, "delete", "free them", &Delete), *flags, true);
}

}  // namespace attnd::client::attnctl
