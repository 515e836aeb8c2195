#include "trireme/core/buffer_pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/core/aligned_memory.h"
#include "trireme/core/check.h"

namespace trireme::core {
namespace {

constexpr int64_t kAlignment = AlignedMemory::kAlignment;

// LibTorch aligns less than a disk wants: the buffer begins inside a larger one.
at::Tensor empty_blocks(int64_t numel, at::ScalarType dtype, bool pinned) {
  const auto size = int64_t(c10::elementSize(dtype));
  const int64_t bytes = round_up_to_alignment(numel * size);
  at::Tensor raw =
      at::empty({bytes + kAlignment}, at::TensorOptions(at::kByte).device(at::kCPU).pinned_memory(pinned));
  const auto over = int64_t(reinterpret_cast<uintptr_t>(raw.data_ptr()) % uintptr_t(kAlignment));
  return raw.narrow(0, over == 0 ? 0 : kAlignment - over, bytes).view(dtype).narrow(0, 0, numel);
}

}  // namespace

bool BufferPool::Order::operator()(const Key& a, const Key& b) const {
  const auto plain = [](const Key& key) {
    const auto& [numel, dtype, device] = key;
    return std::tuple(numel, int(dtype), int(device.type()), int(device.index()));
  };
  return plain(a) < plain(b);
}

at::Tensor BufferPool::take(int64_t numel, at::ScalarType dtype, at::Device device) {
  {
    std::lock_guard lock(mutex_);
    if (const auto idle = idle_.find({numel, dtype, device}); idle != idle_.end()) {
      at::Tensor buffer = std::move(idle->second.back());
      idle->second.pop_back();
      if (idle->second.empty()) idle_.erase(idle);
      return buffer;
    }
  }
  return device.is_cpu() ? empty_blocks(numel, dtype, pinned_)
                         : at::empty({numel}, at::TensorOptions(dtype).device(device));
}

void BufferPool::give_back(at::Tensor buffer) {
  const Key key{buffer.numel(), buffer.scalar_type(), buffer.device()};
  std::vector<at::Tensor> dropped;  // freed without the lock
  std::lock_guard lock(mutex_);
  while (count() >= most_idle_) {
    const auto other =
        std::find_if(idle_.begin(), idle_.end(), [&](auto& idle) { return idle.first != key; });
    if (other == idle_.end()) return;
    dropped.insert(dropped.end(), other->second.begin(), other->second.end());
    idle_.erase(other);
  }
  idle_[key].push_back(std::move(buffer));
}

void BufferPool::drop_idle() {
  decltype(idle_) dropped;
  std::lock_guard lock(mutex_);
  dropped.swap(idle_);
}

int64_t BufferPool::idle_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [key, buffers] : idle_)
    for (const auto& buffer : buffers) bytes += int64_t(buffer.nbytes());
  return bytes;
}

int64_t BufferPool::idle_count() const {
  std::lock_guard lock(mutex_);
  return count();
}

int64_t BufferPool::count() const {
  int64_t count = 0;
  for (const auto& [key, buffers] : idle_) count += int64_t(buffers.size());
  return count;
}

std::span<std::byte> block_of(const at::Tensor& buffer) {
  auto* begin = static_cast<std::byte*>(buffer.data_ptr());
  const auto* end = static_cast<const std::byte*>(buffer.storage().data()) + buffer.storage().nbytes();
  const int64_t bytes = round_up_to_alignment(int64_t(buffer.nbytes()));
  check_internal(buffer.is_cpu() && buffer.is_contiguous() &&
                     reinterpret_cast<uintptr_t>(begin) % uintptr_t(kAlignment) == 0 && begin + bytes <= end,
                 "[core] a buffer for a disk must be of whole blocks; got one of ", buffer.nbytes(),
                 " bytes");
  return {begin, size_t(bytes)};
}

}  // namespace trireme::core
