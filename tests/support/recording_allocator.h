// Watches every CPU allocation of LibTorch.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <thread>

namespace trireme::tests {

/// While it lives, CPU tensors are allocated through it. One at a time.
class RecordingAllocator final : public c10::Allocator {
 public:
  RecordingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~RecordingAllocator() override { c10::SetCPUAllocator(inner_, /*priority=*/1); }

  /// Starts both records anew.
  void reset() {
    largest_ = 0;
    peak_ = live_.load();
  }
  int64_t largest() const { return largest_; }  ///< bytes of the largest single allocation
  int64_t peak() const { return peak_; }        ///< most bytes that were live at once
  int64_t live() const { return live_; }

  /// From now on only what the calling thread allocates is recorded: one rank of several threads.
  void watch_this_thread() { watched_ = std::this_thread::get_id(); }

  c10::DataPtr allocate(size_t bytes) override {
    const auto watched = watched_.load();
    const bool counts = watched == std::thread::id() || watched == std::this_thread::get_id();
    auto* header = static_cast<Header*>(std::aligned_alloc(kAlignment, kAlignment + rounded(bytes)));
    *header = {this, counts ? int64_t(bytes) : 0};
    raise(largest_, header->bytes);
    raise(peak_, live_ += header->bytes);
    void* memory = reinterpret_cast<std::byte*>(header) + kAlignment;
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  // Some kernels allocate without a DataPtr: memory must be enough to free it by.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Header {  // before each block
    RecordingAllocator* owner;
    int64_t bytes;
  };
  static size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
  static void release(void* memory) {
    auto* header = reinterpret_cast<Header*>(static_cast<std::byte*>(memory) - kAlignment);
    header->owner->live_ -= header->bytes;
    std::free(header);
  }
  static void raise(std::atomic<int64_t>& record, int64_t value) {
    int64_t known = record;
    while (known < value && !record.compare_exchange_weak(known, value)) {
    }
  }

  c10::Allocator* inner_;
  std::atomic<std::thread::id> watched_{};
  std::atomic<int64_t> largest_ = 0, peak_ = 0, live_ = 0;
};

}  // namespace trireme::tests
