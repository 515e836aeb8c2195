#include "trireme/core/aligned_memory.h"

#include <new>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::core {
namespace {

constexpr auto kNewAlignment = static_cast<std::align_val_t>(AlignedMemory::kAlignment);

}  // namespace

int64_t round_up_to_alignment(int64_t bytes) {
  check_value(bytes >= 0, "[core] memory has no fewer than 0 bytes; got ", bytes);
  int64_t sum = 0;
  if (__builtin_add_overflow(bytes, AlignedMemory::kAlignment - 1, &sum)) throw std::bad_alloc();
  return sum / AlignedMemory::kAlignment * AlignedMemory::kAlignment;
}

AlignedMemory::AlignedMemory(int64_t bytes) : size_(static_cast<size_t>(round_up_to_alignment(bytes))) {
  if (size_ > 0) memory_.reset(static_cast<std::byte*>(::operator new(size_, kNewAlignment)));
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept
    : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  return *this;
}

void AlignedMemory::Free::operator()(std::byte* memory) const { ::operator delete(memory, kNewAlignment); }

}  // namespace trireme::core
