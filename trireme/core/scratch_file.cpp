#include "trireme/core/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

#include "trireme/core/aligned_memory.h"
#include "trireme/core/check.h"

namespace trireme::core {
namespace {

/// A descriptor, or -1 with errno set.
int open_under_a_name(const std::filesystem::path& directory) {
  std::string name = (directory / "trireme-scratch-XXXXXX").string();
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor >= 0) ::unlink(name.c_str());
  return descriptor;
}

int open_without_a_name(const std::filesystem::path& directory) {
  // O_EXCL: nobody can give it a name later.
  const int descriptor = ::open(directory.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return descriptor;
  return open_under_a_name(directory);
}

/// True where from now on the open file goes past the page cache. Some file systems agree to that and then
/// refuse to write, or want larger blocks: one block is tried.
bool make_direct(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) return false;
  alignas(AlignedMemory::kAlignment) const char block[AlignedMemory::kAlignment] = {};
  const bool refused = ::pwrite(descriptor, block, sizeof block, 0) < 0 && errno == EINVAL;
  const bool emptied = ::ftruncate(descriptor, 0) == 0;
  if (!refused && emptied) return true;
  ::fcntl(descriptor, F_SETFL, flags);
  return false;
}

}  // namespace

bool can_hold_scratch_files(const std::filesystem::path& directory) {
  const int descriptor = open_without_a_name(directory);
  if (descriptor >= 0) ::close(descriptor);
  return descriptor >= 0;
}

ScratchFile::ScratchFile(const std::filesystem::path& directory, bool direct)
    : descriptor_(open_without_a_name(directory)) {
  const int code = errno;
  if (descriptor_ < 0)
    throw ValueError(concatenate("[core] a directory for scratch files must be there and writable; got ",
                                 directory.string(), ": ", std::generic_category().message(code),
                                 "; create it, or name another"));
  direct_ = direct && make_direct(descriptor_);
}

ScratchFile::~ScratchFile() { ::close(descriptor_); }

}  // namespace trireme::core
