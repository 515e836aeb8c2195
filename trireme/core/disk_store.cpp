#include "trireme/core/disk_store.h"

#include <utility>

namespace trireme::core {

DiskStore::DiskStore(const DiskStoreOptions& options, std::shared_ptr<BufferPool> pool,
                     std::shared_ptr<Timeline> timeline)
    : pool_(std::move(pool)),
      timeline_(std::move(timeline)),
      write_behind_bytes_(options.write_behind_bytes),
      file_(options.directory, options.file) {}

DiskStore::~DiskStore() = default;

int64_t DiskStore::allocate(int64_t bytes) {
  const int64_t offset = allocated_;
  allocated_ += round_up_to_alignment(bytes);
  file_.reserve(allocated_);
  return offset;
}

at::Tensor DiskStore::take_buffer(int64_t numel, at::ScalarType dtype) {
  return pool_->take(numel, dtype, at::kCPU);
}

void DiskStore::give_back(at::Tensor buffer) { pool_->give_back(std::move(buffer)); }

Transfer DiskStore::read(int64_t offset, const at::Tensor& buffer) {
  return file_.read(offset, block_of(buffer));
}

Transfer DiskStore::write(int64_t offset, at::Tensor buffer, std::string what) {
  Transfer transfer = file_.write(offset, block_of(buffer));
  writing_bytes_ += int64_t(buffer.nbytes());
  writes_.push_back({transfer, std::move(buffer), std::move(what)});
  settle(write_behind_bytes_);
  return transfer;
}

void DiskStore::note_read(const Transfer& transfer, const std::string& what) {
  if (timeline_) timeline_->add("offload", "read of " + what, transfer.interval());
}

void DiskStore::settle(int64_t bytes_allowed) {
  while (!writes_.empty() && (writing_bytes_ > bytes_allowed || writes_.front().transfer.is_done())) {
    Write oldest = std::move(writes_.front());
    writes_.pop_front();
    writing_bytes_ -= int64_t(oldest.buffer.nbytes());
    oldest.transfer.wait();
    if (timeline_) timeline_->add("offload", "write of " + oldest.what, oldest.transfer.interval());
    pool_->give_back(std::move(oldest.buffer));
  }
}

}  // namespace trireme::core
