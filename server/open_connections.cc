#include "server/open_connections.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace attnd {
namespace {

// 0 where the descriptor is closed or no socket.
ino_t SocketInode(int descriptor) {
  struct stat info {};
  return fstat(descriptor, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

}  // namespace

void OpenConnections::Add(int descriptor) {
  const auto index = static_cast<std::size_t>(descriptor);
  if (index >= inode_of_descriptor_.size()) inode_of_descriptor_.resize(index + 1, 0);
  ino_t& inode = inode_of_descriptor_[index];
  // Not 0: the connection that had this number has been closed since.
  if (inode == 0) ++count_;
  inode = SocketInode(descriptor);
  if (inode == 0) --count_;
}

void OpenConnections::Sweep() {
  for (std::size_t i = 0; i < inode_of_descriptor_.size(); ++i) {
    ino_t& inode = inode_of_descriptor_[i];
    if (inode == 0 || SocketInode(static_cast<int>(i)) == inode) continue;
    inode = 0;
    --count_;
  }
}

void OpenConnections::ShutDown() const {
  for (std::size_t i = 0; i < inode_of_descriptor_.size(); ++i) {
    if (inode_of_descriptor_[i] == 0) continue;
    // A number of its own: the connection's may be closed and given away at any moment.
    const int held = fcntl(static_cast<int>(i), F_DUPFD_CLOEXEC, 0);
    if (held < 0) continue;
    if (SocketInode(held) == inode_of_descriptor_[i]) shutdown(held, SHUT_RDWR);
    close(held);
  }
}

}  // namespace attnd
