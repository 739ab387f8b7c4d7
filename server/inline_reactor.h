// A reactor of gRPC whose reactions run on gRPC's polling threads, instead of being handed to its
// one executor thread: a switch of threads less for every call. Its reactions wait for nothing;
// only SparePoller lets a thread rest at the end of one, never all of them.
#pragma once

namespace attnd {

template <typename Reactor>
class InlineReactor : public Reactor {
 private:
  // gRPC asks its reactors this, and means it for its own ones. Not marked as an override, so that
  // the server also builds, only slower, with a gRPC that does not ask.
  // NOLINTNEXTLINE(modernize-use-override,clang-diagnostic-inconsistent-missing-override)
  bool InternalInlineable() { return true; }
};

}  // namespace attnd
