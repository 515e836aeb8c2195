#include "trireme/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::core {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int code) {
  throw ValueError(concatenate("[core] a file must be there and readable; got ", path.string(), ": ",
                               std::generic_category().message(code)));
}

/// Closes the descriptor at the end of a scope; the mapping does not need it any longer.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Without O_NONBLOCK, a pipe that nobody writes to would hold us here for ever.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) fail(path, errno);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail(path, errno);
  check_value(S_ISREG(status.st_mode), "[core] a regular file is needed; got ", path.string(),
              S_ISDIR(status.st_mode) ? ", a directory" : ", a device or a pipe");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses to map nothing
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.value, 0);
  if (memory == MAP_FAILED) fail(path, errno);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::forget(std::span<const std::byte> part) const {
  // Reading a page maps those around it that the system has in memory, too: in pieces of up to so many bytes.
  constexpr size_t kAround = size_t{2} << 20, kPage = 4096;
  if (part.empty() || part.data() < bytes_.data() || part.data() >= bytes_.data() + bytes_.size()) return;
  const auto first = size_t(part.data() - bytes_.data());
  const size_t begin = (first - std::min(first, kAround)) / kPage * kPage;
  const size_t end = std::min(bytes_.size(), first + part.size() + kAround);
  // Advice: nothing is lost where it is not taken.
  static_cast<void>(::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED));
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace trireme::core
