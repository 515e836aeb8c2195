#include "trireme/zero/storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

namespace trireme::zero {

using at::Tensor;

Tensor tensor_without_memory(at::IntArrayRef shape, at::ScalarType dtype, at::Device device,
                             const std::string& message) {
  const auto bytes = size_t(c10::multiply_integers(shape)) * c10::elementSize(dtype);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                                                       /*resizable=*/false);
  Tensor tensor = at::empty({0}, at::TensorOptions(dtype).device(device));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_and_dtype(at::Storage(std::move(storage)), c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_contiguous(shape);
  drop_memory(tensor, message);
  return tensor;
}

void drop_memory(const Tensor& tensor, const std::string& message) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

void lend_memory(const Tensor& tensor, const Tensor& flat, int64_t offset) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  auto* data = static_cast<char*>(flat.data_ptr()) + offset * int64_t(flat.element_size());
  storage->set_data_ptr_noswap(at::DataPtr(
      data, new Tensor(flat), [](void* context) { delete static_cast<Tensor*>(context); }, tensor.device()));
}

}  // namespace trireme::zero
