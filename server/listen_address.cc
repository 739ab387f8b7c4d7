#include "server/listen_address.h"

#include <charconv>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

// sizeof(sockaddr_un::sun_path), its terminating zero included.
constexpr std::size_t kMaxUnixPath = 108;

absl::Status Bad(std::string_view text, std::string_view need) {
  return absl::InvalidArgumentError(
      absl::StrCat("got '", std::string(text), "', need ", std::string(need)));
}

bool IsWildcard(const std::string& host) {
  return host == "0.0.0.0" || host == "::" || host == "*";
}

std::string CanonicalHost(const std::string& host) {
  return host == "localhost" ? "127.0.0.1" : host;
}

}  // namespace

std::string ListenAddress::ToString() const {
  if (!unix_path.empty()) return absl::StrCat("unix:", unix_path);
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

bool ListenAddress::LocalOnly() const {
  return !unix_path.empty() || host == "localhost" || host == "::1" ||
         absl::StartsWith(host, "127.");
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text) {
  ListenAddress address;
  if (text.substr(0, 5) == "unix:") {
    address.unix_path = text.substr(5);
    if (address.unix_path.empty() || address.unix_path[0] != '/') {
      return Bad(text, "unix: followed by an absolute path");
    }
    if (address.unix_path.size() >= kMaxUnixPath) {
      return Bad(text, absl::StrCat("a unix path shorter than ", kMaxUnixPath, " bytes"));
    }
    return address;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return Bad(text, "host:port, [ipv6]:port or unix:/path");
  }
  address.host = text.substr(0, colon);
  if (address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (absl::StrContains(address.host, ':')) {
    return Bad(text, "brackets around an IPv6 host, like [::1]:8001");
  }
  if (address.host.empty()) return Bad(text, "a host before the port");
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port < 0 ||
      address.port > 65535) {
    return Bad(text, "a port of 0 to 65535");
  }
  return address;
}

bool SameSocket(const ListenAddress& a, const ListenAddress& b) {
  if (!a.unix_path.empty() || !b.unix_path.empty()) return a.unix_path == b.unix_path;
  if (a.port == 0 || a.port != b.port) return false;
  return IsWildcard(a.host) || IsWildcard(b.host) || CanonicalHost(a.host) == CanonicalHost(b.host);
}

}  // namespace attnd
