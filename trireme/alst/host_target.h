// Activations of an accelerator that wait in the memory of the host.
#pragma once

#include <memory>

#include "trireme/alst/offload_target.h"
#include "trireme/core/buffer_pool.h"

namespace trireme::alst {

struct HostTargetOptions {
  bool pinned = true;         ///< page-locked buffers, without which copies do not run beside computation
  bool side_stream = true;    ///< copy on a stream of their own
  int64_t idle_buffers = 64;  ///< that are kept for the next tensor of their size
};

/// Copies go from and to page-locked buffers, on a side stream of the one device that it serves; the
/// computing stream waits for them, the host does not. Of a CPU's tensors it makes plain copies (and accepts
/// none, since that frees nothing).
class HostTarget final : public OffloadTarget {
 public:
  explicit HostTarget(const HostTargetOptions& options);
  ~HostTarget() override;

  bool accepts(const at::Tensor& tensor) const override { return !tensor.is_cpu(); }
  std::unique_ptr<OffloadedTensor> move_away(const at::Tensor& tensor) override;

  /// Buffers that wait for the next tensor.
  int64_t idle_buffers() const;

 private:
  class Buffers;
  class Copy;
  class Moved;
  std::shared_ptr<Buffers> buffers_;
};

}  // namespace trireme::alst
