#include "trireme/alst/disk_target.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "trireme/alst/dense_layout.h"

namespace trireme::alst {

using at::Tensor;

// The file and who has which part of it. Shared with what left, which may outlive the target.
class DiskTarget::Room {
 public:
  Room(std::shared_ptr<core::DiskStore> s, std::shared_ptr<core::BufferPool> p)
      : store(std::move(s)), pool(std::move(p)) {}

  int64_t take(int64_t bytes) {
    auto& free = free_[core::round_up_to_alignment(bytes)];
    for (auto part = free.begin(); part != free.end(); ++part) {
      if (!part->last_write.is_done()) continue;  // it may still land on what comes next
      const int64_t offset = part->offset;
      free.erase(part);
      return offset;
    }
    return store->allocate(bytes);
  }
  void give_back(int64_t offset, int64_t bytes, core::Transfer last_write) {
    free_[core::round_up_to_alignment(bytes)].push_back({offset, std::move(last_write)});
  }

  const std::shared_ptr<core::DiskStore> store;
  const std::shared_ptr<core::BufferPool> pool;

 private:
  struct Part {
    int64_t offset;
    core::Transfer last_write;
  };
  std::map<int64_t, std::vector<Part>> free_;  // by size: a run's tensors have few
};

class DiskTarget::Moved final : public OffloadedTensor {
 public:
  Moved(std::shared_ptr<Room> room, const Tensor& tensor)
      : room_(std::move(room)),
        layout_(tensor),
        options_(tensor.options().requires_grad(false)),
        bytes_(layout_.numel() * int64_t(tensor.element_size())),
        offset_(room_->take(bytes_)) {
    Tensor buffer = take_buffer();
    layout_.copy_to(buffer, tensor);
    write_ = room_->store->write(offset_, std::move(buffer), "an activation");
  }

  ~Moved() override {
    if (buffer_.defined()) {
      try {
        read_.wait();
        room_->store->give_back(std::move(buffer_));
      } catch (const std::exception&) {
        // Nobody asked for it any more. The transfer may go on: its memory must stay.
        new Tensor(std::move(buffer_));
      }
    }
    room_->give_back(offset_, bytes_, write_);
  }

  bool has_left() override { return write_.is_done(); }
  void finish_leaving() override { write_.wait(); }

  void start_return() override {
    if (buffer_.defined()) return;
    write_.wait();
    buffer_ = take_buffer();
    read_ = room_->store->read(offset_, buffer_);
  }

  Tensor take_back() override {
    start_return();
    read_.wait();
    room_->store->note_read(read_, "an activation");
    Tensor buffer = std::exchange(buffer_, Tensor());
    if (options_.device().is_cpu()) return layout_.view_of(lent(std::move(buffer)));
    Tensor row = buffer.to(options_.device());
    room_->store->give_back(std::move(buffer));
    return layout_.view_of(row);
  }

 private:
  Tensor take_buffer() {
    return room_->store->take_buffer(layout_.numel(), c10::typeMetaToScalarType(options_.dtype()));
  }

  // The buffer's values; it returns to the pool when the last user of them is done.
  Tensor lent(Tensor buffer) const {
    void* memory = buffer.data_ptr();
    return at::from_blob(
        memory, {layout_.numel()},
        [pool = room_->pool, buffer = std::move(buffer)](void*) mutable {
          pool->give_back(std::move(buffer));
        },
        options_);
  }

  std::shared_ptr<Room> room_;
  DenseLayout layout_;
  at::TensorOptions options_;
  int64_t bytes_, offset_;
  core::Transfer write_, read_;
  Tensor buffer_;  // being filled
};

DiskTarget::DiskTarget(std::shared_ptr<core::DiskStore> store, std::shared_ptr<core::BufferPool> pool)
    : room_(std::make_shared<Room>(std::move(store), std::move(pool))) {}

DiskTarget::~DiskTarget() = default;

std::unique_ptr<OffloadedTensor> DiskTarget::move_away(const Tensor& tensor) {
  return std::make_unique<Moved>(room_, tensor);
}

void DiskTarget::begin_returning() {
  room_->store->finish_writes();  // it gives back no buffer before it is asked again
  room_->pool->drop_idle();
}

}  // namespace trireme::alst
