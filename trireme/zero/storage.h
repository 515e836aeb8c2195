// A parameter keeps its shape while its memory comes and goes.
//
// Each parameter owns a StorageImpl. Without memory, any use of the parameter's values, in C++ or Python, in
// forward or in backward, raises the text that it was released with. What autograd saved for backward shares
// the StorageImpl, and so revives when memory is lent again.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme::zero {

/// A tensor of a shape, with a storage of its own and no memory. Reading it raises `message`.
at::Tensor tensor_without_memory(at::IntArrayRef shape, at::ScalarType dtype, at::Device device,
                                 const std::string& message);

/// Takes the tensor's memory away; from now on reading it raises `message`.
void drop_memory(const at::Tensor& tensor, const std::string& message);

/// The tensor's memory becomes `flat`'s from element `offset` on. It holds a reference to `flat` until
/// `drop_memory`.
void lend_memory(const at::Tensor& tensor, const at::Tensor& flat, int64_t offset);

}  // namespace trireme::zero
