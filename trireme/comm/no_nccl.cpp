#include "trireme/comm/backend.h"
#include "trireme/comm/backends.h"
#include "trireme/core/check.h"

namespace trireme::comm {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendOptions&) {
  throw core::ValueError(
      "[comm] ranks on CUDA devices need NCCL; got a build against a torch without it; "
      "build against a CUDA torch, or set \"device\": \"cpu\"");
}

bool has_nccl() { return false; }

}  // namespace trireme::comm
