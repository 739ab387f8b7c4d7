#include "server/reflection_service.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "server/message_bytes.h"

namespace attnd {
namespace {

using grpc::reflection::v1alpha::ServerReflection;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;
using ::testing::ElementsAre;

const std::vector<std::string> kServices = {"grpc.health.v1.Health",
                                            "grpc.reflection.v1alpha.ServerReflection"};

// Only what is linked can be found: these references pull the files in.
const google::protobuf::Descriptor* const kLinked[] = {
    v1::Status::descriptor(), grpc::health::v1::HealthCheckRequest::descriptor()};

std::vector<std::string> FileNames(const ServerReflectionResponse& response) {
  std::vector<std::string> names;
  for (const auto& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  return names;
}

TEST(ReflectionServiceTest, ListsTheServices) {
  ServerReflectionRequest request;
  request.set_host("here");
  request.set_list_services("*");
  const auto response = Reflect(request, kServices);
  EXPECT_EQ(response.valid_host(), "here");
  EXPECT_EQ(response.original_request().list_services(), "*");
  ASSERT_EQ(response.list_services_response().service_size(), 2);
  EXPECT_EQ(response.list_services_response().service(0).name(), "grpc.health.v1.Health");
}

TEST(ReflectionServiceTest, FindsFilesByNameAndSymbolWithTheirImports) {
  ServerReflectionRequest request;
  for (const auto* linked : kLinked) ASSERT_NE(linked, nullptr);
  request.set_file_by_filename("attnd/v1/attention.proto");
  EXPECT_THAT(FileNames(Reflect(request, kServices)),
              ElementsAre("attnd/v1/attention.proto", "google/protobuf/duration.proto"));
  request.set_file_containing_symbol("grpc.health.v1.Health.Check");
  EXPECT_THAT(FileNames(Reflect(request, kServices)), ElementsAre("grpc/health/v1/health.proto"));
}

TEST(ReflectionServiceTest, AnswersWhatItDoesNotKnowWithAnError) {
  ServerReflectionRequest request;
  const auto error_code = [&request] {
    return Reflect(request, kServices).error_response().error_code();
  };
  EXPECT_EQ(error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_file_by_filename("no_such.proto");
  EXPECT_EQ(error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_file_containing_symbol("no.such.Symbol");
  EXPECT_EQ(error_code(), grpc::StatusCode::NOT_FOUND);
  request.mutable_file_containing_extension()->set_containing_type("no.such.Type");
  EXPECT_EQ(error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_all_extension_numbers_of_type("no.such.Type");
  EXPECT_EQ(error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_all_extension_numbers_of_type("grpc.health.v1.HealthCheckRequest");
  EXPECT_EQ(Reflect(request, kServices).all_extension_numbers_response().base_type_name(),
            "grpc.health.v1.HealthCheckRequest");
}

class ReflectionServiceStreamTest : public ::testing::Test {
 protected:
  ReflectionServiceStreamTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = ServerReflection::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                          grpc::InsecureChannelCredentials()));
  }

  OpenStreams streams_;
  ReflectionService service_{kServices, streams_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ServerReflection::Stub> stub_;
};

TEST_F(ReflectionServiceStreamTest, AnswersInOrderUntilTheClientIsDone) {
  grpc::ClientContext context;
  auto stream = stub_->ServerReflectionInfo(&context);
  ServerReflectionRequest request;
  ServerReflectionResponse response;
  for (int i = 0; i < 10; ++i) {
    request.set_file_by_filename("file" + std::to_string(i));
    ASSERT_TRUE(stream->Write(request));
  }
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.original_request().file_by_filename(), "file" + std::to_string(i));
  }
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ReflectionServiceStreamTest, ARequestOverTheSizeLimitEndsTheStream) {
  grpc::ClientContext context;
  auto stream = stub_->ServerReflectionInfo(&context);
  ServerReflectionRequest request;
  ServerReflectionResponse response;
  request.set_file_by_filename(std::string(kMaxNameMessageBytes - 3, 'x'));
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  request.mutable_file_by_filename()->push_back('x');
  ASSERT_TRUE(stream->Write(request));
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "ServerReflectionRequest: got 2049 bytes, need at most 2048");
}

TEST_F(ReflectionServiceStreamTest, TheServerEndsOpenStreamsSoThatShutdownReturns) {
  grpc::ClientContext contexts[10];
  std::vector<
      std::unique_ptr<grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>>>
      streams;
  ServerReflectionRequest request;
  request.set_list_services("*");
  for (auto& context : contexts) {
    ServerReflectionResponse response;
    streams.push_back(stub_->ServerReflectionInfo(&context));
    ASSERT_TRUE(streams.back()->Write(request));
    ASSERT_TRUE(streams.back()->Read(&response));
  }
  EXPECT_EQ(streams_.count(), 10);
  streams_.EndAll();
  server_->Shutdown();  // without a deadline: would wait for open calls for ever
  for (auto& stream : streams) {
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(streams_.count(), 0);
}

TEST_F(ReflectionServiceStreamTest, CancelledStreamsAreForgotten) {
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    auto stream = stub_->ServerReflectionInfo(&context);
    ServerReflectionRequest request;
    request.set_list_services("*");
    stream->Write(request);
    context.TryCancel();
    stream->Finish();
  }
  server_->Shutdown();
  EXPECT_EQ(streams_.count(), 0);
}

}  // namespace
}  // namespace attnd
