#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

#include "trireme/comm/backend.h"

namespace trireme::comm {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo_options = Gloo::Options::create(options.timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  gloo_options->devices.push_back(interface       ? Gloo::createDeviceForInterface(interface)
                                  : options.local ? Gloo::createDeviceForHostname("127.0.0.1")
                                                  : Gloo::createDefaultDevice());
  return c10::make_intrusive<Gloo>(options.store, options.rank, options.size, gloo_options);
}

}  // namespace trireme::comm
