// Why an address cannot be listened on, for libraries that tell only that they failed.
#pragma once

#include <string>

#include "server/listen_address.h"

namespace attnd {

// Tries to bind a TCP address and returns the system's words ("Address already in use").
std::string BindFailure(const ListenAddress& address);

}  // namespace attnd
