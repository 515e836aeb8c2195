// Pieces through io_uring. One thread alone touches the ring; others hand it work and wake it by an event.
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/core/io_engine.h"

namespace trireme::core::detail {
namespace {

/// Closes on destruction.
class Event {
 public:
  Event() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category());
  }
  ~Event() { ::close(descriptor_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  int descriptor() const { return descriptor_; }
  void raise() const { ::eventfd_write(descriptor_, 1); }
  void clear() const {
    eventfd_t ignored;
    ::eventfd_read(descriptor_, &ignored);
  }

 private:
  int descriptor_;
};

/// An io_uring whose kernel knows the operations used here. Throws `std::system_error` where it is refused.
class Ring {
 public:
  explicit Ring(int entries) {
    const int code = ::io_uring_queue_init(static_cast<unsigned>(entries), &ring_, 0);
    if (code < 0) throw std::system_error(-code, std::generic_category());
    const int refusal = knows_operations() ? try_out() : ENOSYS;
    if (refusal == 0) return;
    ::io_uring_queue_exit(&ring_);
    throw std::system_error(refusal, std::generic_category());
  }
  ~Ring() { ::io_uring_queue_exit(&ring_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  io_uring* get() { return &ring_; }

 private:
  bool knows_operations() {
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
    if (!probe) return false;
    const bool known = io_uring_opcode_supported(probe, IORING_OP_READ) &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) &&
                       io_uring_opcode_supported(probe, IORING_OP_POLL_ADD);
    ::io_uring_free_probe(probe);
    return known;
  }

  /// Making a ring may be allowed where using it is not. 0, or an errno.
  int try_out() {
    io_uring_prep_nop(::io_uring_get_sqe(&ring_));
    const int code = ::io_uring_submit_and_wait(&ring_, 1);
    if (code < 0) return -code;
    io_uring_cq_advance(&ring_, 1);
    return 0;
  }

  io_uring ring_;
};

class UringEngine final : public Engine {
 public:
  UringEngine(int descriptor, int queue_depth)
      : descriptor_(descriptor),
        ring_(queue_depth + 1),
        slots_(static_cast<size_t>(queue_depth)) {  // +1: the event
    for (auto& slot : slots_) free_.push_back(&slot);
    thread_ = start_io_thread([this](const std::stop_token& stop) { work(stop); });
  }

  ~UringEngine() override {
    thread_.request_stop();
    event_.raise();
  }

  void submit(std::list<Piece> pieces) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      queue_.splice(queue_.end(), pieces);
    }
    event_.raise();
  }

 private:
  /// Holds one piece in flight, or none.
  using Slot = std::list<Piece>;

  void work(const std::stop_token& stop) {
    watch_event();
    for (;;) {
      // Asked before looking for work: what was submitted before the stop is seen.
      const bool stopping = stop.stop_requested();
      start_pieces();
      if (stopping && free_.size() == slots_.size()) return;
      const int code = ::io_uring_submit_and_wait(ring_.get(), 1);
      // Short of memory, or completions to be taken first: what was not submitted still is in the ring.
      if (code < 0 && code != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      take_completions();
    }
  }

  void start_pieces() {
    const std::lock_guard lock(mutex_);
    while (!queue_.empty() && !free_.empty()) {
      Slot* slot = free_.back();
      free_.pop_back();
      slot->splice(slot->end(), queue_, queue_.begin());
      prepare(slot);
    }
  }

  void take_completions() {
    io_uring_cqe* entry = nullptr;
    while (::io_uring_peek_cqe(ring_.get(), &entry) == 0) {
      auto* slot = static_cast<Slot*>(io_uring_cqe_get_data(entry));
      const int result = entry->res;
      io_uring_cqe_seen(ring_.get(), entry);
      if (!slot) {
        event_.clear();
        watch_event();
      } else if (slot->front().advance(result)) {
        slot->clear();
        free_.push_back(slot);
      } else {
        prepare(slot);
      }
    }
  }

  void prepare(Slot* slot) {
    const Piece& piece = slot->front();
    const auto bytes = static_cast<unsigned>(piece.bytes);
    const auto offset = static_cast<uint64_t>(piece.offset);
    io_uring_sqe* entry = ::io_uring_get_sqe(ring_.get());
    if (piece.transfer->direction == Direction::read)
      io_uring_prep_read(entry, descriptor_, piece.memory, bytes, offset);
    else
      io_uring_prep_write(entry, descriptor_, piece.memory, bytes, offset);
    io_uring_sqe_set_data(entry, slot);
  }

  void watch_event() {
    io_uring_sqe* entry = ::io_uring_get_sqe(ring_.get());
    io_uring_prep_poll_add(entry, event_.descriptor(), POLLIN);
    io_uring_sqe_set_data(entry, nullptr);
  }

  const int descriptor_;
  Event event_;
  Ring ring_;
  std::vector<Slot> slots_;  ///< `queue_depth` of them
  std::vector<Slot*> free_;  ///< those that hold nothing; of the thread alone
  std::mutex mutex_;         ///< guards `queue_`
  std::list<Piece> queue_;
  std::jthread thread_;  ///< last: it ends before what it uses
};

}  // namespace

std::unique_ptr<Engine> make_uring_engine(int descriptor, int queue_depth) {
  return std::make_unique<UringEngine>(descriptor, queue_depth);
}

}  // namespace trireme::core::detail
