#include "trireme/core/io_engine.h"

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace trireme::core::detail {

bool Piece::advance(int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result <= 0) {
    // A disk that is full may also say so by taking nothing.
    const int nothing_done = transfer->direction == Direction::write ? ENOSPC : kEndOfFile;
    transfer->activity->finish_piece(*transfer,
                                     Fault{result < 0 ? static_cast<int>(-result) : nothing_done, offset});
    return true;
  }
  memory += result;
  bytes -= static_cast<size_t>(result);
  offset += result;
  if (bytes > 0) return false;
  transfer->activity->finish_piece(*transfer, {});
  return true;
}

std::jthread start_io_thread(std::function<void(std::stop_token)> body) {
  // A thread inherits the mask of the one that makes it.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } const restore{before};
  return std::jthread(std::move(body));
}

}  // namespace trireme::core::detail
