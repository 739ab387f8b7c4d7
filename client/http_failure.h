// What went wrong with a request to an admin port, in words. Includes httplib, whose macros gRPC's
// headers do not survive: for files that do not include those.
#pragma once

#include <httplib.h>

#include <string>

namespace attnd::client {

inline std::string HttpFailure(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "nothing accepts connections there";
    case httplib::Error::Read:
      return "connected, but no HTTP answer came";
    case httplib::Error::Write:
      return "connected, but the request could not be sent";
    default:
      return httplib::to_string(error);
  }
}

}  // namespace attnd::client
