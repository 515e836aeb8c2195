#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "trireme/comm/backend.h"
#include "trireme/comm/backends.h"

namespace trireme::comm {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendOptions& options) {
  using Nccl = c10d::ProcessGroupNCCL;
  auto nccl_options = Nccl::Options::create();
  nccl_options->timeout = options.timeout;
  return c10::make_intrusive<Nccl>(options.store, options.rank, options.size, nccl_options);
}

bool has_nccl() { return true; }

}  // namespace trireme::comm
