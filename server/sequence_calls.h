// Handlers of the sequence rpcs: validate, ask the scheduler, fill the reply. None blocks.
#pragma once

#include "attnd/v1/attention.pb.h"
#include "server/control_call.h"

namespace attnd {

void CreateSequence(ControlContext context, const v1::CreateSequenceRequest& request,
                    ControlReply<v1::CreateSequenceResponse> reply);
void ForkSequence(ControlContext context, const v1::ForkSequenceRequest& request,
                  ControlReply<v1::ForkSequenceResponse> reply);
void GetSequence(ControlContext context, const v1::GetSequenceRequest& request,
                 ControlReply<v1::Sequence> reply);
void ListSequences(ControlContext context, const v1::ListSequencesRequest& request,
                   ControlReply<v1::ListSequencesResponse> reply);
void RenewSequences(ControlContext context, const v1::RenewSequencesRequest& request,
                    ControlReply<v1::RenewSequencesResponse> reply);
void TruncateSequences(ControlContext context, const v1::TruncateSequencesRequest& request,
                       ControlReply<v1::TruncateSequencesResponse> reply);
void DeleteSequences(ControlContext context, const v1::DeleteSequencesRequest& request,
                     ControlReply<v1::DeleteSequencesResponse> reply);

}  // namespace attnd
