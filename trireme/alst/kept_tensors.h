// What waits between a checkpoint's forward pass and its backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace trireme::alst {

/// The tensors of one checkpoint. They go, wherever they are, with the last owner.
class KeptTensors {
 public:
  virtual ~KeptTensors() = default;

  /// All of them, in order, with the values, shapes, dtypes and devices of when they were kept. May be called
  /// again, as a graph that is retained does.
  virtual std::vector<at::Tensor> get() = 0;
};

/// Where checkpoints put what they keep.
class Keeper {
 public:
  virtual ~Keeper() = default;

  /// `inputs` are the region's, `computed` what it asked for besides; `get` returns them in this order.
  /// Neither may be changed in place while it is kept.
  virtual std::shared_ptr<KeptTensors> keep(const std::vector<at::Tensor>& inputs,
                                            const std::vector<at::Tensor>& computed) = 0;
};

}  // namespace trireme::alst
