#include "trireme/core/async_file.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <list>
#include <system_error>
#include <utility>

#include "trireme/core/check.h"
#include "trireme/core/file_activity.h"
#include "trireme/core/io_engine.h"

namespace trireme::core {
namespace {

using detail::Direction;

/// Large enough for a disk's full speed, small enough for a transfer to be in flight in several places.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

/// `options`, once they are known to be in range: before anything is created.
AsyncFileOptions checked(AsyncFileOptions options) {
  check_value(options.queue_depth >= 1 && options.queue_depth <= 4096,
              "[core] queue_depth must be from 1 to 4096; got ", options.queue_depth);
  check_value(options.threads >= 1 && options.threads <= 256, "[core] threads must be from 1 to 256; got ",
              options.threads);
  check_value(options.time_limit_seconds > 0 && options.time_limit_seconds <= 1e8,
              "[core] time_limit_seconds must be above 0 and at most 1e8; got ", options.time_limit_seconds);
  return options;
}

void check_aligned(int64_t offset, const std::byte* memory, size_t bytes) {
  constexpr int64_t unit = AlignedMemory::kAlignment;
  int64_t end = 0;
  check_value(offset >= 0 && !__builtin_add_overflow(offset, bytes, &end),
              "[core] a transfer must lie within what a file can hold; got offset ", offset, " and ", bytes,
              " bytes");
  const bool aligned =
      offset % unit == 0 && bytes % unit == 0 && reinterpret_cast<uintptr_t>(memory) % unit == 0;
  check_value(aligned, "[core] offset, size and memory of a transfer must be multiples of ", unit,
              "; got offset ", offset, ", ", bytes, " bytes, memory at ", static_cast<const void*>(memory),
              "; use AlignedMemory");
}

/// 0, or an errno.
int allocate(int descriptor, int64_t bytes) {
  if (bytes == 0) return 0;
  // Beyond this limit the kernel ends the process (SIGXFSZ).
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && static_cast<rlim_t>(bytes) > limit.rlim_cur) return EFBIG;
  while (::fallocate(descriptor, 0, 0, bytes) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

std::list<detail::Piece> cut(const std::shared_ptr<detail::TransferRecord>& record, std::byte* memory) {
  std::list<detail::Piece> pieces;
  for (int64_t begin = 0; begin < record->bytes; begin += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, record->bytes - begin);
    pieces.push_back({record, memory + begin, static_cast<size_t>(bytes), record->offset + begin});
  }
  return pieces;
}

}  // namespace

AsyncFile::AsyncFile(const std::filesystem::path& directory, AsyncFileOptions options)
    : directory_(directory),
      file_(directory, checked(options).direct),
      activity_(std::make_shared<detail::FileActivity>(
          directory, detail::FileActivity::Seconds(options.time_limit_seconds))) {
  start_engine(options);
  description_ += is_direct() ? ", direct" : ", through the page cache";
}

void AsyncFile::start_engine(const AsyncFileOptions& options) {
  description_ = "threads";
  // Writes into the page cache are what io_uring leaves to kernel threads, one at a time for each file.
  const bool slow = options.engine == IoEngine::automatic && !is_direct();
  if (options.engine != IoEngine::threads && !slow) {
    try {
      engine_ = detail::make_uring_engine(file_.descriptor(), options.queue_depth);
      used_ = IoEngine::uring;
      description_ = "io_uring";
      return;
    } catch (const std::system_error& refusal) {
      const std::string reason = refusal.code().message();
      check_value(options.engine == IoEngine::automatic, "[core] the kernel must allow io_uring; got ",
                  reason,
                  "; take the engine automatic or threads, or allow it (kernel.io_uring_disabled, seccomp)");
      description_ += concatenate(" (io_uring: ", reason, ")");
    }
  }
  engine_ = detail::make_thread_engine(file_.descriptor(), options.threads);
}

AsyncFile::~AsyncFile() {
  if (!activity_->becomes_idle())
    std::cerr
        << "[core] a scratch file must be idle before its memory goes; still waiting for the disk under "
        << directory_.string() << "; see whether it answers" << std::endl;
}

void AsyncFile::reserve(int64_t bytes) {
  check_value(bytes >= 0, "[core] a file has no fewer than 0 bytes; got ", bytes);
  const int code = allocate(file_.descriptor(), bytes);
  if (code == 0 || code == EOPNOTSUPP || code == ENOSYS) return;
  throw FileError(concatenate("[core] the disk must have room for a scratch file of ", bytes, " bytes in ",
                              directory_.string(), "; got ", std::generic_category().message(code), "; ",
                              detail::disk_advice(code)));
}

Transfer AsyncFile::start(Direction direction, int64_t offset, std::byte* memory, size_t bytes) {
  check_aligned(offset, memory, bytes);
  activity_->check_writes();
  if (bytes == 0) return {};
  const auto size = static_cast<int64_t>(bytes);
  const auto record = std::make_shared<detail::TransferRecord>(
      detail::TransferRecord{activity_, direction, offset, size, (size + kPieceBytes - 1) / kPieceBytes, {}});
  Transfer transfer(record);
  std::list<detail::Piece> pieces = cut(record, memory);
  // Nothing fails from here on: whatever is counted as started also ends.
  activity_->start(*record);
  engine_->submit(std::move(pieces));
  return transfer;
}

Transfer AsyncFile::write(int64_t offset, std::span<const std::byte> memory) {
  // One kind of piece serves both directions; those of a write are only read.
  return start(Direction::write, offset, const_cast<std::byte*>(memory.data()), memory.size());
}

Transfer AsyncFile::read(int64_t offset, std::span<std::byte> memory) {
  return start(Direction::read, offset, memory.data(), memory.size());
}

void AsyncFile::wait_all() { activity_->wait_all(); }
int64_t AsyncFile::bytes_written() const { return activity_->bytes(Direction::write); }
int64_t AsyncFile::bytes_read() const { return activity_->bytes(Direction::read); }

}  // namespace trireme::core
