// Pieces through pread and pwrite, by a pool of threads.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "trireme/core/io_engine.h"

namespace trireme::core::detail {
namespace {

class ThreadEngine final : public Engine {
 public:
  ThreadEngine(int descriptor, int threads) : descriptor_(descriptor) {
    for (int i = 0; i < threads; ++i)
      threads_.push_back(start_io_thread([this](const std::stop_token& stop) { work(stop); }));
  }

  void submit(std::list<Piece> pieces) noexcept override {
    const std::lock_guard lock(mutex_);
    queue_.splice(queue_.end(), pieces);
    changed_.notify_all();
  }

 private:
  void work(const std::stop_token& stop) {
    for (std::list<Piece> taken = take(stop); !taken.empty(); taken = take(stop)) {
      Piece& piece = taken.front();
      while (!piece.advance(transfer(piece))) {
      }
    }
  }

  /// The next piece; none where the engine ends and all are taken.
  std::list<Piece> take(const std::stop_token& stop) {
    std::list<Piece> taken;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, stop, [this] { return !queue_.empty(); });
    if (!queue_.empty()) taken.splice(taken.end(), queue_, queue_.begin());
    return taken;
  }

  /// Bytes done, or a negative errno.
  int64_t transfer(const Piece& piece) const {
    const ssize_t done = piece.transfer->direction == Direction::read
                             ? ::pread(descriptor_, piece.memory, piece.bytes, piece.offset)
                             : ::pwrite(descriptor_, piece.memory, piece.bytes, piece.offset);
    return done < 0 ? -errno : done;
  }

  const int descriptor_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::list<Piece> queue_;
  std::vector<std::jthread> threads_;  ///< last: they end before what they use
};

}  // namespace

std::unique_ptr<Engine> make_thread_engine(int descriptor, int threads) {
  return std::make_unique<ThreadEngine>(descriptor, threads);
}

}  // namespace trireme::core::detail
