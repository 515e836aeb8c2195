#include "trireme/alst/host_target.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <optional>
#include <utility>

#include "trireme/alst/dense_layout.h"
#include "trireme/core/check.h"

namespace trireme::alst {

using at::Tensor;

// Shared with what left, which may outlive the target.
class HostTarget::Buffers {
 public:
  explicit Buffers(const HostTargetOptions& options)
      : side_stream_(options.side_stream), pool_(options.pinned, options.idle_buffers) {}

  Tensor take(int64_t numel, at::ScalarType dtype) { return pool_.take(numel, dtype, at::kCPU); }
  void give_back(Tensor buffer) { pool_.give_back(std::move(buffer)); }
  int64_t idle() const { return pool_.idle_count(); }

  // The stream that copies, of a device that has streams: one for all, so that a buffer's copies are in
  // order.
  c10::Stream stream(at::Device device) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    if (!side_stream_) return guard.getStream(device);
    if (!side_) side_ = guard.getStreamFromGlobalPool(device);
    core::check_value(side_->device() == device, "[alst] a host target serves one device; got a tensor of ",
                      device, " after one of ", side_->device(), "; make one for each");
    return *side_;
  }

 private:
  bool side_stream_;
  core::BufferPool pool_;
  std::optional<c10::Stream> side_;
};

// A copy between a device and a host buffer: begun on the copying stream after what the computing stream was
// given so far.
class HostTarget::Copy {
 public:
  Copy(Buffers& buffers, at::Device device) : device_(device) {
    if (device.is_cpu()) return;
    stream_ = buffers.stream(device);
    c10::Event ready(device.type());
    ready.record(computing());
    ready.block(*stream_);
    guard_.emplace(*stream_);
    done_.emplace(device.type());
  }
  void begun() {
    if (!done_) return;
    done_->record(*stream_);
    guard_.reset();
  }
  // What the computing stream is given from now on comes after it.
  void wait() {
    if (done_) done_->block(computing());
  }
  bool is_done() { return !done_ || done_->query(); }

 private:
  c10::Stream computing() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::StreamGuard> guard_;
  std::optional<c10::Event> done_;
};

class HostTarget::Moved final : public OffloadedTensor {
 public:
  Moved(std::shared_ptr<Buffers> buffers, const Tensor& tensor)
      : buffers_(std::move(buffers)),
        layout_(tensor),
        device_(tensor.device()),
        source_(tensor),
        buffer_(buffers_->take(layout_.numel(), tensor.scalar_type())) {
    leaving_.emplace(*buffers_, device_);
    layout_.copy_to(buffer_, tensor, /*non_blocking=*/true);
    leaving_->begun();
  }
  // A copy may be under way that nobody waited for: what the computing stream puts in the place of its
  // source or its target comes after it.
  ~Moved() override {
    try {
      if (leaving_) leaving_->wait();
      if (returning_) returning_->wait();
    } catch (const std::exception&) {
      // A device that fails says so to whoever uses it next.
    }
    buffers_->give_back(std::move(buffer_));
  }

  bool has_left() override { return !leaving_ || leaving_->is_done(); }

  void finish_leaving() override {
    if (!leaving_) return;
    leaving_->wait();
    leaving_.reset();
    source_ = Tensor();  // until now: its memory must not be another's while it is read
  }

  void start_return() override {
    finish_leaving();
    if (returned_.defined()) return;
    // Of the computing stream's memory: it waits for the copy, and may use it freely after that.
    returned_ = at::empty({layout_.numel()}, buffer_.options().device(device_).pinned_memory(false));
    returning_.emplace(*buffers_, device_);
    returned_.copy_(buffer_, /*non_blocking=*/true);
    returning_->begun();
  }

  Tensor take_back() override {
    start_return();
    returning_->wait();
    returning_.reset();
    return layout_.view_of(std::exchange(returned_, Tensor()));
  }

 private:
  std::shared_ptr<Buffers> buffers_;
  DenseLayout layout_;
  at::Device device_;
  Tensor source_, buffer_, returned_;
  std::optional<Copy> leaving_, returning_;
};

HostTarget::HostTarget(const HostTargetOptions& options) : buffers_(std::make_shared<Buffers>(options)) {}

HostTarget::~HostTarget() = default;

std::unique_ptr<OffloadedTensor> HostTarget::move_away(const Tensor& tensor) {
  return std::make_unique<Moved>(buffers_, tensor);
}

int64_t HostTarget::idle_buffers() const { return buffers_->idle(); }

}  // namespace trireme::alst
