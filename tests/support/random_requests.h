// Random requests of the wire contract: every field set now and then, sizes small.
#pragma once

#include <random>

#include "attnd/v1/attention.pb.h"

namespace attnd::testing {

v1::AttendRequest RandomAttendRequest(std::mt19937_64& random);
v1::DecodeRequest RandomDecodeRequest(std::mt19937_64& random);

}  // namespace attnd::testing
