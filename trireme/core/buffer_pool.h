// Flat buffers that are handed from one user to the next.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

namespace trireme::core {

/// Fresh pages cost more than the transfer that fills them, so buffers are kept and reused by exact size.
/// Buffers hold arbitrary values. Thread-safe: a tensor may lend its buffer out, and whichever thread frees
/// the tensor gives it back.
class BufferPool {
 public:
  /// `pinned`: buffers of the host are page-locked, so that a GPU copies from and to them beside its
  /// computation. No more than `most_idle` buffers wait to be taken: of the others, those of sizes that
  /// were not given back last are freed first.
  explicit BufferPool(bool pinned = false, int64_t most_idle = std::numeric_limits<int64_t>::max())
      : pinned_(pinned), most_idle_(most_idle) {}

  /// A flat tensor [numel] of `dtype` on `device`. On the host it begins at, and its memory goes on to, a
  /// multiple of `AlignedMemory::kAlignment`, as direct I/O wants it: see `block_of`.
  at::Tensor take(int64_t numel, at::ScalarType dtype, at::Device device);

  /// Makes `buffer`, from `take`, available again. Whoever still reads it must be done on the current stream.
  void give_back(at::Tensor buffer);

  /// Bytes that are waiting to be taken.
  int64_t idle_bytes() const;
  /// And how many buffers they are.
  int64_t idle_count() const;

  /// Frees the buffers that are waiting.
  void drop_idle();

 private:
  using Key = std::tuple<int64_t, at::ScalarType, at::Device>;
  struct Order {
    bool operator()(const Key& a, const Key& b) const;
  };
  int64_t count() const;  // of idle_

  bool pinned_;
  int64_t most_idle_;
  mutable std::mutex mutex_;
  std::map<Key, std::vector<at::Tensor>, Order> idle_;
};

/// The memory under a host buffer of a pool, with what rounding up added at its end. Throws
/// `std::logic_error` for any other tensor that does not begin at, or own, whole blocks.
std::span<std::byte> block_of(const at::Tensor& buffer);

}  // namespace trireme::core
