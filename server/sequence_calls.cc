#include "server/sequence_calls.h"

#include <google/protobuf/util/time_util.h>

#include <string>
#include <utility>
#include <vector>

#include "server/sequence_validation.h"
#include "server/wire_types.h"

namespace attnd {
namespace {

using google::protobuf::util::TimeUtil;

google::protobuf::Duration ToProto(Clock::Duration duration) {
  return TimeUtil::NanosecondsToDuration(duration.count());
}

v1::Sequence ToProto(const SequenceInfo& info) {
  v1::Sequence sequence;
  sequence.set_sequence_id(info.sequence_id);
  sequence.set_num_layers(info.num_layers);
  sequence.set_num_heads(info.num_heads);
  sequence.set_num_kv_heads(info.num_kv_heads);
  sequence.set_head_dim(info.head_dim);
  sequence.set_data_type(ToProtoType(info.data_type));
  sequence.set_kv_data_type(ToProtoType(info.kv_data_type));
  sequence.set_max_tokens(info.max_tokens);
  sequence.mutable_layer_tokens()->Assign(info.layer_tokens.begin(), info.layer_tokens.end());
  sequence.mutable_layer_epochs()->Assign(info.layer_epochs.begin(), info.layer_epochs.end());
  sequence.set_device_pages(info.device_pages);
  sequence.set_host_pages(info.host_pages);
  sequence.set_shared_pages(info.shared_pages);
  *sequence.mutable_lease_remaining() = ToProto(info.lease_remaining);
  return sequence;
}

template <typename Response>
Response FailuresToProto(const std::vector<SequenceFailureValue>& failures) {
  Response response;
  for (const SequenceFailureValue& failure : failures) {
    v1::SequenceFailure& proto = *response.add_failures();
    proto.set_sequence_id(failure.sequence_id);
    *proto.mutable_status() = ToProtoStatus(failure.status);
  }
  return response;
}

std::vector<std::string> Ids(const google::protobuf::RepeatedPtrField<std::string>& ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace

void CreateSequence(ControlContext context, const v1::CreateSequenceRequest& request,
                    ControlReply<v1::CreateSequenceResponse> reply) {
  auto spec = ValidateCreateSequence(request, context.state.limits(), std::move(context.tenant));
  if (!spec.ok()) return reply(spec.status());
  const auto grant = context.state.scheduler().CreateSequence(*spec);
  if (!grant.ok()) return reply(grant.status());
  v1::CreateSequenceResponse response;
  response.set_sequence_id(grant->sequence_id);
  response.set_max_tokens(grant->max_tokens);
  *response.mutable_lease() = ToProto(grant->lease);
  response.set_server(context.state.config().server_name);
  reply(std::move(response));
}

void ForkSequence(ControlContext context, const v1::ForkSequenceRequest& request,
                  ControlReply<v1::ForkSequenceResponse> reply) {
  auto spec = ValidateForkSequence(request, std::move(context.tenant));
  if (!spec.ok()) return reply(spec.status());
  context.state.scheduler().ForkSequence(
      *std::move(spec),
      [reply = std::move(reply)](const absl::StatusOr<SequenceGrant>& grant) mutable {
        if (!grant.ok()) return reply(grant.status());
        v1::ForkSequenceResponse response;
        response.set_sequence_id(grant->sequence_id);
        *response.mutable_lease() = ToProto(grant->lease);
        reply(std::move(response));
      });
}

void GetSequence(ControlContext context, const v1::GetSequenceRequest& request,
                 ControlReply<v1::Sequence> reply) {
  if (request.sequence_id().empty()) {
    return reply(InvalidField("sequence_id", "no bytes", "a sequence id"));
  }
  const auto info = context.state.scheduler().GetSequence(context.tenant, request.sequence_id());
  if (!info.ok()) return reply(info.status());
  reply(ToProto(*info));
}

void ListSequences(ControlContext context, const v1::ListSequencesRequest& request,
                   ControlReply<v1::ListSequencesResponse> reply) {
  const auto page_size = ValidatePageSize(request.page_size());
  if (!page_size.ok()) return reply(page_size.status());
  const auto list =
      context.state.scheduler().ListSequences(context.tenant, *page_size, request.page_token());
  if (!list.ok()) return reply(list.status());
  v1::ListSequencesResponse response;
  for (const SequenceInfo& info : list->sequences) *response.add_sequences() = ToProto(info);
  response.set_next_page_token(list->next_page_token);
  reply(std::move(response));
}

void RenewSequences(ControlContext context, const v1::RenewSequencesRequest& request,
                    ControlReply<v1::RenewSequencesResponse> reply) {
  if (auto status = ValidateSequenceIds(request.sequence_ids(), context.state.limits());
      !status.ok()) {
    return reply(std::move(status));
  }
  const auto lease = ValidateLease(request.has_lease(), request.lease());
  if (!lease.ok()) return reply(lease.status());
  reply(FailuresToProto<v1::RenewSequencesResponse>(context.state.scheduler().RenewSequences(
      context.tenant, Ids(request.sequence_ids()), *lease)));
}

void TruncateSequences(ControlContext context, const v1::TruncateSequencesRequest& request,
                       ControlReply<v1::TruncateSequencesResponse> reply) {
  if (auto status = ValidateSequenceIds(request.sequence_ids(), context.state.limits());
      !status.ok()) {
    return reply(std::move(status));
  }
  if (request.num_tokens() < 0) {
    return reply(InvalidField("num_tokens", absl::StrCat(request.num_tokens()), ">= 0"));
  }
  context.state.scheduler().TruncateSequences(
      std::move(context.tenant), Ids(request.sequence_ids()), request.num_tokens(), request.epoch(),
      [reply = std::move(reply)](const std::vector<SequenceFailureValue>& failures) mutable {
        reply(FailuresToProto<v1::TruncateSequencesResponse>(failures));
      });
}

void DeleteSequences(ControlContext context, const v1::DeleteSequencesRequest& request,
                     ControlReply<v1::DeleteSequencesResponse> reply) {
  if (auto status = ValidateSequenceIds(request.sequence_ids(), context.state.limits());
      !status.ok()) {
    return reply(std::move(status));
  }
  context.state.scheduler().DeleteSequences(
      std::move(context.tenant), Ids(request.sequence_ids()),
      [reply = std::move(reply)](const std::vector<SequenceFailureValue>& failures) mutable {
        reply(FailuresToProto<v1::DeleteSequencesResponse>(failures));
      });
}

}  // namespace attnd
