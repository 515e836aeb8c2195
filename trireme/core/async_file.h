// Memory that is put on disk and brought back while the program computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "trireme/core/aligned_memory.h"
#include "trireme/core/scratch_file.h"
#include "trireme/core/transfer.h"

namespace trireme::core {

namespace detail {
class FileActivity;
class Engine;
enum class Direction;
}  // namespace detail

/// Who moves the bytes.
enum class IoEngine {
  automatic,  ///< `uring`, unless the kernel refuses it or the file goes through the page cache
  uring,      ///< io_uring: the kernel, and one thread of ours
  threads,    ///< threads that block in reads and writes
};

struct AsyncFileOptions {
  IoEngine engine = IoEngine::automatic;
  int queue_depth = 32;             ///< pieces of transfers in flight, with `uring`
  int threads = 8;                  ///< the same, with `threads`
  bool direct = true;               ///< past the page cache, where the file system can
  double time_limit_seconds = 600;  ///< of every wait
};

/// A scratch file that only this process sees and that is gone with it, see `ScratchFile`.
///
/// Offsets, sizes and addresses of memory are multiples of `AlignedMemory::kAlignment`, whatever the disk.
/// Memory must live, and be left alone, until its transfer is done. Transfers are in no order: wait for a
/// write before what it wrote is read or written again. Any number of threads may start transfers, wait, and
/// ask, at once. A process that forks must not use the file in the child.
class AsyncFile {
 public:
  /// In `directory`. Throws `ValueError` where nothing can be created there, for options out of range, and
  /// where `uring` is asked for and the kernel refuses it.
  explicit AsyncFile(const std::filesystem::path& directory, AsyncFileOptions options = {});

  /// Waits for all transfers, however long that takes: their memory may go next. Past the time limit it says
  /// on standard error what it waits for.
  ~AsyncFile();
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  /// Takes the first `bytes` of the file from the disk's free space, where the file system can: a full disk
  /// is found out now. Throws `FileError`. Reading there what was not written gives zeros.
  void reserve(int64_t bytes);

  /// Start a transfer; do not block. Throw `ValueError` for what is not aligned, and `FileError` where an
  /// earlier write has failed and no `Transfer::wait` has thrown it yet. A transfer of no bytes is done at
  /// once. Reading what was not written gives zeros between bytes that were, and fails after the last of
  /// them.
  Transfer write(int64_t offset, std::span<const std::byte> memory);
  Transfer read(int64_t offset, std::span<std::byte> memory);

  /// Waits for all transfers that were started. Throws `FileError` past the time limit, and where a write has
  /// failed that no `Transfer::wait` has thrown yet.
  void wait_all();

  IoEngine engine() const { return used_; }                        ///< never `automatic`
  bool is_direct() const { return file_.is_direct(); }             ///< false: through the page cache
  const std::string& description() const { return description_; }  ///< such as "io_uring, direct"

  /// Of transfers that are done.
  int64_t bytes_written() const;
  int64_t bytes_read() const;

 private:
  void start_engine(const AsyncFileOptions& options);
  Transfer start(detail::Direction direction, int64_t offset, std::byte* memory, size_t bytes);

  const std::filesystem::path directory_;
  ScratchFile file_;
  std::shared_ptr<detail::FileActivity> activity_;
  IoEngine used_ = IoEngine::threads;
  std::string description_;
  std::unique_ptr<detail::Engine> engine_;  ///< last: it ends before what it uses
};

}  // namespace trireme::core
