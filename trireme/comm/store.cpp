#include "trireme/comm/store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace trireme::comm {

struct StoreServer::State {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer(int port) : state_(std::make_unique<State>()) {
  c10d::TCPStoreOptions options;
  options.port = uint16_t(port);
  options.isServer = true;
  options.waitWorkers = false;
  state_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

StoreServer::~StoreServer() = default;
StoreServer::StoreServer(StoreServer&&) noexcept = default;
StoreServer& StoreServer::operator=(StoreServer&&) noexcept = default;

int StoreServer::port() const { return state_->store->getPort(); }

}  // namespace trireme::comm
