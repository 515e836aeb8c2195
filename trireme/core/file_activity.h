// What goes on in one asynchronous file: between those who start transfers, carry them out, and wait for
// them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/core/timeline.h"

namespace trireme::core::detail {

enum class Direction { read, write };

/// Where and why a transfer failed.
struct Fault {
  int code;        ///< errno's, or `kEndOfFile`
  int64_t offset;  ///< in the file
};

/// In place of an errno: there is nothing in the file where a read asked for bytes.
constexpr int kEndOfFile = 0;

/// What to do about a disk that gave this errno.
std::string_view disk_advice(int code);

class FileActivity;

/// One transfer. What changes is guarded by `activity`'s mutex.
struct TransferRecord {
  std::shared_ptr<FileActivity> activity;
  Direction direction;
  int64_t offset;
  int64_t bytes;
  int64_t pieces_left;         ///< done when 0
  std::optional<Fault> fault;  ///< of the piece that failed first
  bool reported = false;       ///< a wait has thrown `fault`
  Interval interval{};         ///< its end is set when it is done
};

/// Counts and errors of a file's transfers. Outlives the file where a `Transfer` does. Thread-safe.
class FileActivity {
 public:
  using Seconds = std::chrono::duration<double>;

  FileActivity(const std::filesystem::path& directory, Seconds time_limit)
      : directory_(directory.string()), time_limit_(time_limit) {}

  /// `transfer` is about to be handed to the engine.
  void start(TransferRecord& transfer);

  /// A piece of `transfer` is done, or has failed. Called by engines, once for each piece.
  void finish_piece(TransferRecord& transfer, std::optional<Fault> fault);

  /// See `Transfer`.
  void wait(TransferRecord& transfer);
  bool is_done(const TransferRecord& transfer) const;
  Interval interval(const TransferRecord& transfer) const;

  /// Returns when nothing is in flight. Throws `FileError` past the time limit and for `check_writes`.
  void wait_all();

  /// Throws `FileError` where a write has failed that nobody has been told of by `wait`.
  void check_writes() const;

  /// Whether nothing is in flight, now or within the time limit.
  bool becomes_idle() noexcept;

  int64_t bytes(Direction direction) const;  ///< of transfers that are done

 private:
  struct Failure {
    Direction direction;
    int64_t offset;
    int64_t bytes;
    Fault fault;
  };

  template <class Condition>
  bool wait_until(std::unique_lock<std::mutex>& lock, Condition&& condition);
  [[noreturn]] void fail(const Failure& failure) const;
  [[noreturn]] void fail_late(const std::string& what) const;

  const std::string directory_;
  const Seconds time_limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t in_flight_ = 0;  ///< transfers
  int64_t bytes_read_ = 0;
  int64_t bytes_written_ = 0;
  int64_t unreported_writes_ = 0;  ///< failed, and no wait has thrown it
  std::optional<Failure> failed_write_;
};

}  // namespace trireme::core::detail
