// Flat buffers that are handed from one user to the next.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <tuple>
#include <vector>

namespace trireme::core {

/// Fresh pages cost more than the transfer that fills them, so buffers are kept and reused by exact size. Not
/// thread-safe: one pool a rank. Buffers hold arbitrary values.
class BufferPool {
 public:
  /// A flat tensor [numel] of `dtype` on `device`.
  at::Tensor take(int64_t numel, at::ScalarType dtype, at::Device device);

  /// Makes `buffer`, from `take`, available again. Whoever still reads it must be done on the current stream.
  void give_back(at::Tensor buffer);

  /// Bytes that are waiting to be taken.
  int64_t idle_bytes() const;

 private:
  using Key = std::tuple<int64_t, at::ScalarType, at::Device>;
  struct Order {
    bool operator()(const Key& a, const Key& b) const;
  };
  std::map<Key, std::vector<at::Tensor>, Order> idle_;
};

}  // namespace trireme::core
