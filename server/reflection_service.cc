#include "server/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/message_bytes.h"
#include "server/mutex.h"

namespace attnd {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

void AddWithImports(const FileDescriptor& file, std::set<const FileDescriptor*>& seen,
                    ServerReflectionResponse& response) {
  if (!seen.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddWithImports(*file.dependency(i), seen, response);
  }
}

void Refuse(grpc::StatusCode code, std::string message, ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(std::move(message));
}

void AnswerWithFile(const FileDescriptor* file, const std::string& asked,
                    ServerReflectionResponse& response) {
  if (file == nullptr) return Refuse(grpc::StatusCode::NOT_FOUND, "not found: " + asked, response);
  std::set<const FileDescriptor*> seen;
  AddWithImports(*file, seen, response);
}

void AnswerWithExtensionNumbers(const std::string& type, ServerReflectionResponse& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto* descriptor = pool.FindMessageTypeByName(type);
  if (descriptor == nullptr) {
    return Refuse(grpc::StatusCode::NOT_FOUND, "not found: " + type, response);
  }
  std::vector<const google::protobuf::FieldDescriptor*> extensions;
  pool.FindAllExtensions(descriptor, &extensions);
  auto& numbers = *response.mutable_all_extension_numbers_response();
  numbers.set_base_type_name(type);
  for (const auto* extension : extensions) numbers.add_extension_number(extension->number());
}

// One stream: reads a question, writes its answer, reads the next one.
class ReflectionCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                             public EndableStream,
                             public std::enable_shared_from_this<ReflectionCall> {
 public:
  // Owns itself until gRPC is done with it.
  static ReflectionCall* Start(const std::vector<std::string>& services, OpenStreams& streams) {
    std::shared_ptr<ReflectionCall> call(new ReflectionCall(services, streams));
    call->self_ = call;
    call->StartRead(&call->request_);  // kept by gRPC until the reactor has been returned
    streams.Add(call);
    return call.get();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    ServerReflectionRequest request;
    if (const grpc::Status parsed = ParseNameMessage(request_, request); !parsed.ok()) {
      return End(parsed);
    }
    if (!BeginWrite()) return;
    response_ = SerializeMessage(Reflect(request, services_));
    StartWrite(&response_);
    Started();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (ok && !ended_) {
        ++starting_;
      } else {
        ended_ = true;
        ok = false;
      }
    }
    if (!ok) return MaybeFinish();
    StartRead(&request_);
    Started();
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void EndByServer() override {
    End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }

  void OnDone() override {
    streams_.Remove(this);
    // The last reference may be this one: nothing is touched after it.
    const std::shared_ptr<ReflectionCall> self = std::move(self_);
  }

 private:
  ReflectionCall(const std::vector<std::string>& services, OpenStreams& streams)
      : services_(services), streams_(streams) {}

  bool BeginWrite() {
    MutexLock lock(mutex_);
    if (ended_) return false;
    writing_ = true;
    ++starting_;
    return true;
  }

  void Started() {
    {
      MutexLock lock(mutex_);
      --starting_;
    }
    MaybeFinish();
  }

  void End(const grpc::Status& status) {
    {
      MutexLock lock(mutex_);
      if (!ended_) end_status_ = status;
      ended_ = true;
    }
    MaybeFinish();
  }

  // Not while an operation is being started: after Finish gRPC may free the stream.
  void MaybeFinish() {
    grpc::Status status;
    {
      MutexLock lock(mutex_);
      if (!ended_ || finished_ || writing_ || starting_ > 0) return;
      finished_ = true;
      status = end_status_;
    }
    Finish(status);
  }

  const std::vector<std::string>& services_;
  OpenStreams& streams_;
  std::shared_ptr<ReflectionCall> self_;
  grpc::ByteBuffer request_;   // of the read in flight
  grpc::ByteBuffer response_;  // of the write in flight

  Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

ServerReflectionResponse Reflect(const ServerReflectionRequest& request,
                                 const std::vector<std::string>& services) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      AnswerWithFile(pool.FindFileByName(request.file_by_filename()), request.file_by_filename(),
                     response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      AnswerWithFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                     request.file_containing_symbol(), response);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const auto* type = pool.FindMessageTypeByName(asked.containing_type());
      const auto* extension =
          type == nullptr ? nullptr : pool.FindExtensionByNumber(type, asked.extension_number());
      AnswerWithFile(extension == nullptr ? nullptr : extension->file(), asked.containing_type(),
                     response);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      AnswerWithExtensionNumbers(request.all_extension_numbers_of_type(), response);
      break;
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : services) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    default:
      Refuse(grpc::StatusCode::INVALID_ARGUMENT, "the request asks for nothing known", response);
  }
  return response;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
ReflectionService::ServerReflectionInfo(grpc::CallbackServerContext*) {
  return ReflectionCall::Start(services_, streams_);
}

}  // namespace attnd
