#include "trireme/core/stored_tensor.h"

#include <algorithm>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::core {

using at::Tensor;

Tensor Reading::wait() {
  transfer_.wait();
  if (store_) store_->note_read(transfer_, what_);
  store_ = nullptr;
  return values_;
}

StoredTensor::StoredTensor(Tensor values)
    : numel_(values.numel()), dtype_(values.scalar_type()), values_(std::move(values)) {}

StoredTensor::StoredTensor(int64_t numel, at::ScalarType dtype, std::shared_ptr<DiskStore> store,
                           std::string what)
    : numel_(numel), dtype_(dtype), store_(std::move(store)), what_(std::move(what)) {
  offset_ = store_->allocate(numel * int64_t(c10::elementSize(dtype)));
}

const Tensor& StoredTensor::in_place() const {
  check_internal(in_memory(), "[core] only a tensor in memory has its values in place; got ", what_);
  return values_;
}

void StoredTensor::wait_for_writes(int64_t first, int64_t count) {
  std::erase_if(writes_, [&](const Write& write) {
    const bool overlaps = write.first < first + count && first < write.first + write.count;
    if (overlaps) write.transfer.wait();
    return overlaps || write.transfer.is_done();
  });
}

Reading StoredTensor::read(int64_t first, int64_t count) {
  Reading reading;
  if (in_memory()) {
    reading.values_ = values_.narrow(0, first, count);
    return reading;
  }
  reading.values_ = blank(first, count);
  if (first >= written_) {
    reading.values_.zero_();
    return reading;
  }
  check_internal(first + count <= written_, "[core] what is read must have been written whole; got elements ",
                 first, " to ", first + count, " of ", written_);
  wait_for_writes(first, count);
  reading.transfer_ = store_->read(offset_ + first * int64_t(c10::elementSize(dtype_)), reading.values_);
  reading.store_ = store_.get();
  reading.what_ = what_;
  return reading;
}

Tensor StoredTensor::blank(int64_t first, int64_t count) {
  if (in_memory()) return values_.narrow(0, first, count);
  const bool whole_blocks = first % kRangeStep == 0 && (count % kRangeStep == 0 || first + count == numel_);
  check_internal(whole_blocks && first + count <= numel_,
                 "[core] a range on a disk must be of whole blocks of ", numel_, " elements; got ", count,
                 " from ", first);
  return store_->take_buffer(count, dtype_);
}

void StoredTensor::write_back(int64_t first, Tensor values) {
  if (in_memory()) return;
  const int64_t count = values.numel();
  check_internal(first <= written_, "[core] a tensor on a disk is first written in order; got ", first,
                 " after ", written_);
  wait_for_writes(first, count);
  Transfer transfer =
      store_->write(offset_ + first * int64_t(c10::elementSize(dtype_)), std::move(values), what_);
  writes_.push_back({first, count, std::move(transfer)});
  written_ = std::max(written_, first + count);
}

void StoredTensor::write(int64_t first, const Tensor& values) {
  Tensor place = blank(first, values.numel());
  place.copy_(values);
  write_back(first, std::move(place));
}

void StoredTensor::give_back(Tensor values) {
  if (!in_memory()) store_->give_back(std::move(values));
}

void StoredTensor::clear() {
  if (in_memory())
    values_.zero_();
  else
    written_ = 0;
}

}  // namespace trireme::core
