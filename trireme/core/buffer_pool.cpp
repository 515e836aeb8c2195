#include "trireme/core/buffer_pool.h"

#include <ATen/ops/empty.h>

namespace trireme::core {

bool BufferPool::Order::operator()(const Key& a, const Key& b) const {
  const auto plain = [](const Key& key) {
    const auto& [numel, dtype, device] = key;
    return std::tuple(numel, int(dtype), int(device.type()), int(device.index()));
  };
  return plain(a) < plain(b);
}

at::Tensor BufferPool::take(int64_t numel, at::ScalarType dtype, at::Device device) {
  auto& idle = idle_[{numel, dtype, device}];
  if (idle.empty()) return at::empty({numel}, at::TensorOptions(dtype).device(device));
  at::Tensor buffer = std::move(idle.back());
  idle.pop_back();
  return buffer;
}

void BufferPool::give_back(at::Tensor buffer) {
  const Key key{buffer.numel(), buffer.scalar_type(), buffer.device()};
  idle_[key].push_back(std::move(buffer));
}

int64_t BufferPool::idle_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, buffers] : idle_)
    for (const auto& buffer : buffers) bytes += int64_t(buffer.nbytes());
  return bytes;
}

}  // namespace trireme::core
