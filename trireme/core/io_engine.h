// Who carries out the reads and writes of an asynchronous file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <stop_token>
#include <thread>

#include "trireme/core/file_activity.h"

namespace trireme::core::detail {

/// A part of a transfer, small enough for several to be in flight; shrinks where the kernel does a part of
/// it.
struct Piece {
  std::shared_ptr<TransferRecord> transfer;
  std::byte* memory;  ///< of a write: never written to
  size_t bytes;
  int64_t offset;  ///< in the file

  /// Takes what the kernel said: bytes done, or a negative errno. False where the rest has still to be done;
  /// otherwise the transfer has been told, and the piece is over.
  bool advance(int64_t result);
};

/// Works on one open file. The destructor returns when all pieces are over.
class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Takes the pieces over and returns at once; they start in this order, and end in any. From any thread.
  virtual void submit(std::list<Piece> pieces) noexcept = 0;
};

/// `queue_depth` pieces at a time through io_uring, and one thread that waits for them. Throws
/// `std::system_error` where the kernel refuses: too old, or forbidden, as it often is in containers.
std::unique_ptr<Engine> make_uring_engine(int descriptor, int queue_depth);

/// As many pieces at a time as there are threads, by pread and pwrite.
std::unique_ptr<Engine> make_thread_engine(int descriptor, int threads);

/// A thread that receives no signals: they are for the program's own threads, and a limit on the size of
/// files becomes an error instead of the end of the process (SIGXFSZ).
std::jthread start_io_thread(std::function<void(std::stop_token)> body);

}  // namespace trireme::core::detail
