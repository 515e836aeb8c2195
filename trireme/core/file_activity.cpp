#include "trireme/core/file_activity.h"

#include <cerrno>
#include <system_error>

#include "trireme/core/check.h"

namespace trireme::core::detail {
namespace {

std::string describe(Direction direction, int64_t bytes, int64_t offset) {
  return concatenate(direction == Direction::read ? "a read of " : "a write of ", bytes, " bytes at offset ",
                     offset);
}

}  // namespace

std::string_view disk_advice(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return "free space there, or name a directory on a larger disk";
    case EFBIG:
      return "raise the limit on the size of files (ulimit -f), or name a directory on another file system";
    default:
      return "look for faults of the disk in the kernel's log (dmesg), or name another directory";
  }
}

void FileActivity::start(TransferRecord& transfer) {
  const std::lock_guard lock(mutex_);
  transfer.interval.begin = std::chrono::steady_clock::now();
  ++in_flight_;
}

void FileActivity::finish_piece(TransferRecord& transfer, std::optional<Fault> fault) {
  const std::lock_guard lock(mutex_);
  if (fault && !transfer.fault) transfer.fault = fault;
  if (--transfer.pieces_left > 0) return;
  transfer.interval.end = std::chrono::steady_clock::now();
  const bool write = transfer.direction == Direction::write;
  if (!transfer.fault) {
    (write ? bytes_written_ : bytes_read_) += transfer.bytes;
  } else if (write) {
    ++unreported_writes_;
    failed_write_ = Failure{transfer.direction, transfer.offset, transfer.bytes, *transfer.fault};
  }
  --in_flight_;
  changed_.notify_all();
}

template <class Condition>
bool FileActivity::wait_until(std::unique_lock<std::mutex>& lock, Condition&& condition) {
  return changed_.wait_for(lock, time_limit_, condition);
}

void FileActivity::wait(TransferRecord& transfer) {
  std::unique_lock lock(mutex_);
  if (!wait_until(lock, [&] { return transfer.pieces_left == 0; }))
    fail_late(describe(transfer.direction, transfer.bytes, transfer.offset));
  if (!transfer.fault) return;
  if (transfer.direction == Direction::write && !transfer.reported) --unreported_writes_;
  transfer.reported = true;
  fail({transfer.direction, transfer.offset, transfer.bytes, *transfer.fault});
}

bool FileActivity::is_done(const TransferRecord& transfer) const {
  const std::lock_guard lock(mutex_);
  return transfer.pieces_left == 0;
}

Interval FileActivity::interval(const TransferRecord& transfer) const {
  const std::lock_guard lock(mutex_);
  return transfer.pieces_left == 0 ? transfer.interval : Interval{};
}

void FileActivity::wait_all() {
  {
    std::unique_lock lock(mutex_);
    if (!wait_until(lock, [&] { return in_flight_ == 0; })) fail_late("all that was started");
  }
  check_writes();
}

void FileActivity::check_writes() const {
  const std::lock_guard lock(mutex_);
  if (unreported_writes_ > 0) fail(*failed_write_);
}

bool FileActivity::becomes_idle() noexcept {
  std::unique_lock lock(mutex_);
  return wait_until(lock, [&] { return in_flight_ == 0; });
}

int64_t FileActivity::bytes(Direction direction) const {
  const std::lock_guard lock(mutex_);
  return direction == Direction::read ? bytes_read_ : bytes_written_;
}

void FileActivity::fail(const Failure& failure) const {
  const auto& [direction, offset, bytes, fault] = failure;
  const std::string what = describe(direction, bytes, offset);
  if (fault.code == kEndOfFile)
    throw FileError(concatenate("[core] only what was written can be read; got ", what,
                                " from the scratch file in ", directory_, ", which holds nothing at ",
                                fault.offset));
  throw FileError(concatenate("[core] a scratch file must take and give back what it is asked to; got ",
                              std::generic_category().message(fault.code), " at offset ", fault.offset,
                              ", in ", what, ", in ", directory_, "; ", disk_advice(fault.code)));
}

void FileActivity::fail_late(const std::string& what) const {
  throw FileError(concatenate("[core] a disk must do within ", time_limit_.count(),
                              " seconds what is waited for; got ", what, " not done, of the scratch file in ",
                              directory_, "; see whether the disk answers, or raise the time limit"));
}

}  // namespace trireme::core::detail
