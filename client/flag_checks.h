// Checks and errors of command lines in words that people can read; for attnctl and attnload.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace attnd::client {

// The library's own name the largest double, in 300 digits.
inline CLI::Validator NumberCheck(const char* kind, const char* need, bool (*allowed)(double)) {
  const auto check = [need, allowed](const std::string& text) {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    return number && allowed(value) ? std::string() : "got '" + text + "', need " + need;
  };
  return {check, kind};
}
inline CLI::Validator AboveZero() {
  return NumberCheck("POSITIVE", "a number above 0", [](double value) { return value > 0; });
}
inline CLI::Validator NotNegative() {
  return NumberCheck("NONNEGATIVE", "0 or more", [](double value) { return value >= 0; });
}

// Prints what --help and --version ask for, or what is wrong. True: it was asked for.
inline bool ReportParseEnd(const CLI::App& app, const CLI::ParseError& end) {
  const bool wanted = end.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
  // A word that is no subcommand is only seen as one that is missing.
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (end.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) && !unknown.empty()) {
    std::fprintf(stderr, "unknown %s '%s'\nRun with --help for more information.\n",
                 unknown.front().starts_with("-") ? "flag" : "subcommand", unknown.front().c_str());
  } else {
    app.exit(end);
  }
  return wanted;
}

}  // namespace attnd::client
