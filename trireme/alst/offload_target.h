// Where activations go when they leave the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme::alst {

/// A tensor that left. It gives its room back when it goes.
class OffloadedTensor {
 public:
  virtual ~OffloadedTensor() = default;

  /// Returns when it has left: nothing holds the source any more.
  virtual void finish_leaving() = 0;
  virtual bool has_left() = 0;

  /// Starts bringing it back beside what the caller goes on with. Where it is under way already, nothing.
  virtual void start_return() = 0;

  /// Starts if nobody did, waits, and returns it on its device; may be started again after that.
  virtual at::Tensor take_back() = 0;
};

class OffloadTarget {
 public:
  virtual ~OffloadTarget() = default;

  /// Does moving `tensor` there free memory of the device that holds it?
  virtual bool accepts(const at::Tensor& tensor) const = 0;

  /// Starts moving `tensor`, of any strides. The caller may drop it at once.
  virtual std::unique_ptr<OffloadedTensor> move_away(const at::Tensor& tensor) = 0;

  /// From here on tensors come back: buffers that only leaving tensors need may go.
  virtual void begin_returning() {}
};

}  // namespace trireme::alst
