// Writes the generated pages of docs/ into the folder given as the argument.
#include <fstream>
#include <iostream>
#include <string>

#include "server/metrics.h"
#include "server/server_config.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: attnd_write_docs FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  const auto write = [&folder](const char* name, const std::string& text) {
    std::ofstream file(folder + "/" + name);
    file << text << std::flush;
    if (!file) std::cerr << "cannot write " << folder << "/" << name << "\n";
    return static_cast<bool>(file);
  };
  const bool written = write("configuration.md", attnd::FlagsAsMarkdown()) &&
                       write("metrics.md", attnd::Metrics::FamiliesAsMarkdown());
  return written ? 0 : 1;
}
