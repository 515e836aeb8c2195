#include "trireme/comm/store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/comm/diagnosis.h"
#include "trireme/comm/watch.h"

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

std::string StoreServer::last_seen(int64_t rank) const {
  const auto last = last_heartbeat(*state_->store, rank);
  return last ? comm::last_seen(*last, seconds_since_1970()) : "";
}

}  // namespace trireme::comm
