// Activations that wait in a scratch file.
#pragma once

#include <memory>

#include "trireme/alst/offload_target.h"
#include "trireme/core/disk_store.h"

namespace trireme::alst {

/// Written behind the computation and read ahead of their use; room in the file is used again once what was
/// there is gone. On the host a tensor comes back in the buffer that it was read into.
class DiskTarget final : public OffloadTarget {
 public:
  /// `pool` is that of the store's buffers.
  DiskTarget(std::shared_ptr<core::DiskStore> store, std::shared_ptr<core::BufferPool> pool);
  ~DiskTarget() override;

  bool accepts(const at::Tensor& tensor) const override { return tensor.numel() > 0; }
  std::unique_ptr<OffloadedTensor> move_away(const at::Tensor& tensor) override;
  void begin_returning() override;

 private:
  class Room;
  class Moved;
  std::shared_ptr<Room> room_;
};

}  // namespace trireme::alst
