// Sanitizer settings compiled into every test of a sanitizer build, so that a test behaves the same
// under CTest, a debugger and by hand. The environment (ASAN_OPTIONS, ...) still overrides them.
//
// The distribution's gRPC, Abseil, protobuf and oneTBB are not instrumented. ThreadSanitizer does
// not see how they synchronise and reports what they hand from one thread to another; only reports
// raised inside those libraries are suppressed, never one whose frames are all ours.

#if defined(__SANITIZE_ADDRESS__)

extern "C" const char* __asan_default_options() {  // NOLINT(readability-identifier-naming)
  return "strict_string_checks=1:detect_stack_use_after_return=1:check_initialization_order=1:"
         "strict_init_order=1";
}

extern "C" const char* __ubsan_default_options() {  // NOLINT(readability-identifier-naming)
  return "print_stacktrace=1:halt_on_error=1";
}

#elif defined(__SANITIZE_THREAD__)

extern "C" const char* __tsan_default_options() {  // NOLINT(readability-identifier-naming)
  return "second_deadlock_stack=1:ignore_noninstrumented_modules=1:exitcode=66";
}

extern "C" const char* __tsan_default_suppressions() {  // NOLINT(readability-identifier-naming)
  return
      // Interceptors (locks, memcpy, ...) called by these libraries themselves.
      "called_from_lib:libgrpc.so\n"
      "called_from_lib:libgrpc++.so\n"
      "called_from_lib:libgpr.so\n"
      "called_from_lib:libtbb.so\n"
      // Accesses inside the library, to memory that it was handed.
      "race:libgrpc.so\n"
      "race:libgrpc++.so\n"
      // Templates of gRPC's headers, compiled into our binaries: they read and write call objects
      // that passed through a completion queue of the library. No code of ours runs below them.
      "race:grpc::internal::CallOpClientRecvStatus::FinishOp\n"
      "race:grpc::internal::InterceptorBatchMethodsImpl::RunInterceptors\n";
}

#endif
