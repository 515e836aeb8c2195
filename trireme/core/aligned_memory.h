// Memory that a disk can read and write without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace trireme::core {

/// `bytes` rounded up to a multiple of `AlignedMemory::kAlignment`. Throws `std::bad_alloc` where no such
/// number exists.
int64_t round_up_to_alignment(int64_t bytes);

/// Memory whose address and size suit direct I/O. Owns it; its contents are not set. Moving keeps the
/// address.
class AlignedMemory {
 public:
  /// Of addresses, sizes and offsets in a file, in bytes: a page, and a block of any disk in use today.
  static constexpr int64_t kAlignment = 4096;

  AlignedMemory() = default;  ///< holds nothing

  /// At least `bytes`. Throws `ValueError` for fewer than none and `std::bad_alloc` where there is no memory.
  explicit AlignedMemory(int64_t bytes);
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;

  /// All of it, what was added by rounding up included.
  std::span<std::byte> bytes() { return {memory_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {memory_.get(), size_}; }
  int64_t size() const { return static_cast<int64_t>(size_); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

}  // namespace trireme::core
