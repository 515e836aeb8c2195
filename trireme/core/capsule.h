// Any C++ value inside an autograd context: `ctx->saved_data["group"] = to_capsule(group)`.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/from_blob.h>

#include <memory>
#include <utility>

namespace trireme::core {
namespace detail {

template <class Value>
struct Capsule : torch::CustomClassHolder {
  explicit Capsule(Value v) : value(std::move(v)) {}
  Value value;
};

}  // namespace detail

/// Owns `value` until the autograd node is freed. Read it back with the same type.
template <class Value>
c10::IValue to_capsule(Value value) {
  return c10::IValue::make_capsule(c10::make_intrusive<detail::Capsule<Value>>(std::move(value)));
}

/// A reference to what `to_capsule<Value>` stored; valid as long as the capsule. The type is the caller's
/// word.
template <class Value>
Value& from_capsule(const c10::IValue& capsule) {
  return static_cast<detail::Capsule<Value>*>(capsule.toCapsule().get())->value;
}

/// An empty tensor that owns `value`. Saved for a backward pass it keeps the value as long as autograd keeps
/// what is saved: a capsule would, too, when that has been freed. Read it back with the same type.
template <class Value>
at::Tensor to_owning_tensor(std::shared_ptr<Value> value) {
  Value* address = value.get();
  return at::from_blob(
      address, {0}, [value = std::move(value)](void*) mutable { value.reset(); },
      at::TensorOptions(at::kByte));
}

/// The value that `to_owning_tensor<Value>` stored; valid as long as the tensor.
template <class Value>
Value& from_owning_tensor(const at::Tensor& tensor) {
  return *static_cast<Value*>(tensor.storage().mutable_data());
}

}  // namespace trireme::core
