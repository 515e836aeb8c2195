// A flat tensor that is used by ranges, in memory or on a disk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/core/disk_store.h"
#include "trireme/core/timeline.h"
#include "trireme/core/transfer.h"

namespace trireme::core {

/// Values that are on their way into memory. Whoever started it waits for it once: its buffer is still being
/// filled until then.
class Reading {
 public:
  /// [count]: the tensor's own memory where it is in memory, else a buffer that the caller hands to
  /// `StoredTensor::write_back` or `give_back`.
  at::Tensor wait();

  /// When the values travelled; known after `wait`.
  Interval interval() const { return transfer_.interval(); }

 private:
  friend class StoredTensor;
  at::Tensor values_;
  Transfer transfer_;
  DiskStore* store_ = nullptr;
  std::string what_;
};

/// [n] of one dtype. On a disk, ranges begin at multiples of `kRangeStep` elements, and what was never
/// written, in order from the first element, is zero without being read. Not thread-safe.
class StoredTensor {
 public:
  /// 8192 bytes of the narrowest floating-point type, 16384 of fp32: whole blocks of a disk.
  static constexpr int64_t kRangeStep = 4096;

  /// In memory: shares `values`.
  explicit StoredTensor(at::Tensor values);
  /// On a disk: zeros. `what` is what a timeline calls it.
  StoredTensor(int64_t numel, at::ScalarType dtype, std::shared_ptr<DiskStore> store, std::string what);

  bool in_memory() const { return !store_; }
  int64_t numel() const { return numel_; }
  at::ScalarType dtype() const { return dtype_; }
  /// The values, where they are in memory.
  const at::Tensor& in_place() const;

  /// Starts bringing elements [first, first + count) into memory.
  Reading read(int64_t first, int64_t count);
  Reading read() { return read(0, numel_); }

  /// [count], to be filled and given to `write_back` for elements from `first` on.
  at::Tensor blank(int64_t first, int64_t count);

  /// Takes over what `read` or `blank` returned and the caller changed; goes on behind the caller's back.
  void write_back(int64_t first, at::Tensor values);

  /// Copies `values`, of any dtype and device, to the elements from `first` on.
  void write(int64_t first, const at::Tensor& values);

  /// Returns what `read` gave and was not changed.
  void give_back(at::Tensor values);

  /// All elements are zero from now on.
  void clear();

 private:
  void wait_for_writes(int64_t first, int64_t count);

  struct Write {
    int64_t first, count;
    Transfer transfer;
  };
  int64_t numel_;
  at::ScalarType dtype_;
  at::Tensor values_;
  std::shared_ptr<DiskStore> store_;
  std::string what_;
  int64_t offset_ = 0, written_ = 0;  // in the file; elements from the first on that were ever written
  std::vector<Write> writes_;         // that may be under way
};

}  // namespace trireme::core
