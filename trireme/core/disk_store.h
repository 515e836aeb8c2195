// Flat tensors on a disk: read ahead of their use, written behind the computation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>

#include "trireme/core/async_file.h"
#include "trireme/core/buffer_pool.h"
#include "trireme/core/timeline.h"

namespace trireme::core {

struct DiskStoreOptions {
  std::filesystem::path directory;  ///< where the scratch file lies; it must exist
  AsyncFileOptions file;
  int64_t write_behind_bytes = 0;  ///< so many may be under way while the caller goes on
};

/// One scratch file of this process and the transfers from and to it. Not thread-safe: one a rank and
/// purpose. Errors: `ValueError` where the directory is none; `FileError` where the disk is full, fails or
/// does not answer within the file's time limit.
class DiskStore {
 public:
  /// Buffers come from `pool` and return to it. `timeline`, if given, is told of every transfer.
  DiskStore(const DiskStoreOptions& options, std::shared_ptr<BufferPool> pool,
            std::shared_ptr<Timeline> timeline = nullptr);
  /// Waits for the writes that go on.
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  /// Takes room for `bytes` from the disk's free space, and returns its offset.
  int64_t allocate(int64_t bytes);

  /// A host buffer [numel] that can be read into and written from.
  at::Tensor take_buffer(int64_t numel, at::ScalarType dtype);
  void give_back(at::Tensor buffer);

  /// Starts filling `buffer`, from `take_buffer`, which must live until it is full.
  Transfer read(int64_t offset, const at::Tensor& buffer);

  /// Starts writing `buffer`, from `take_buffer`, which returns to the pool when it is on disk. Waits for
  /// older writes until no more than `write_behind_bytes` go on. `what` is what a timeline calls it.
  Transfer write(int64_t offset, at::Tensor buffer, std::string what);

  /// Tells the timeline of a read that was waited for.
  void note_read(const Transfer& transfer, const std::string& what);

  /// Returns when all is on disk.
  void finish_writes() { settle(0); }

  int64_t bytes_read() const { return file_.bytes_read(); }
  int64_t bytes_written() const { return file_.bytes_written(); }
  const std::string& description() const { return file_.description(); }

 private:
  struct Write {
    Transfer transfer;
    at::Tensor buffer;
    std::string what;
  };
  void settle(int64_t bytes_allowed);

  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<Timeline> timeline_;
  int64_t write_behind_bytes_;
  int64_t allocated_ = 0;
  int64_t writing_bytes_ = 0;
  std::deque<Write> writes_;  // oldest first
  AsyncFile file_;            // last: it ends before the buffers do
};

}  // namespace trireme::core
