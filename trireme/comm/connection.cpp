#include "trireme/comm/connection.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <map>
#include <utility>

#include "trireme/comm/backend.h"
#include "trireme/comm/reason.h"
#include "trireme/comm/watch.h"
#include "trireme/core/check.h"

namespace trireme::comm {

struct Connection::State {
  c10::intrusive_ptr<c10d::Store> store;  // null where this is the only rank
  int64_t rank, size;
  c10::Device device;
  std::chrono::milliseconds timeout;
  bool local;
  std::shared_ptr<const Watch> watch;
  bool checks_order;
  // How many groups of a name and first rank there were: keys in the store are never used twice.
  std::map<std::pair<std::string, int64_t>, int64_t> groups = {};
};

namespace {

c10::intrusive_ptr<c10d::Store> open_store(const Environment& environment,
                                           std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = uint16_t(environment.port);
  options.isServer = environment.rank == 0 && !environment.external_store;
  options.numWorkers = size_t(environment.world_size);
  options.waitWorkers = false;  // torchrun's own store does not count its clients
  options.timeout = timeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
  if (environment.store_prefix.empty()) return store;
  return c10::make_intrusive<c10d::PrefixStore>(environment.store_prefix, store);
}

// Runs `connect`; what goes wrong is told with where the ranks should have met.
template <class Connect>
auto with_context(const std::string& what, const Connect& connect) {
  try {
    return connect();
  } catch (const core::ValueError&) {
    throw;  // says itself what to do
  } catch (const std::exception& error) {
    throw core::CommunicationError(
        core::concatenate("[comm] ", what, " failed: ", reason_of(error),
                          "; see that every rank was started and can reach the others"));
  }
}

// Waits until all ranks of a group have come to `place`. gloo's own wait for a missing rank has a limit of
// its own and names nobody.
void meet(c10d::Store& store, const std::string& place, const std::vector<int64_t>& ranks, int64_t mine,
          std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int64_t rank : ranks) keys.push_back(place + "/" + std::to_string(rank));
  store.set(place + "/" + std::to_string(mine), std::string("1"));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception&) {
    std::vector<int64_t> missing;
    for (size_t i = 0; i < keys.size(); ++i)
      if (!store.check({keys[i]})) missing.push_back(ranks[i]);
    throw std::runtime_error(core::concatenate("ranks ", at::IntArrayRef(missing), " did not come within ",
                                               double(timeout.count()) / 1000, " s"));
  }
}

// With a client of the store of its own, so that neither waits for the other.
std::shared_ptr<const Watch> start_watch(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                         int64_t size, bool store_on_rank_0) {
  Watch::Options options{.store = {}, .rank = rank, .size = size, .store_on_rank_0 = store_on_rank_0};
  return with_context("connecting to the store again", [&] {
    if (store && size > 1) options.store = store->clone();
    return std::make_shared<const Watch>(options);
  });
}

}  // namespace

Connection::Connection(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, c10::Device device,
                       std::chrono::milliseconds timeout, bool local, bool store_on_rank_0, bool checks_order)
    : state_(std::make_shared<State>(State{store, rank, size, device, timeout, local,
                                           start_watch(store, rank, size, store_on_rank_0), checks_order})) {}

Connection Connection::open(const Environment& environment, c10::Device device,
                            std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<c10d::Store> store;
  if (environment.world_size > 1)
    store = with_context(core::concatenate("meeting of ", environment.world_size, " ranks at ",
                                           environment.master_address, ":", environment.port),
                         [&] { return open_store(environment, timeout); });
  const bool local = environment.local_world_size == environment.world_size;
  return {std::move(store),
          environment.rank,
          environment.world_size,
          device,
          timeout,
          local,
          !environment.external_store,
          environment.checks_order};
}

int64_t Connection::rank() const { return state_->rank; }
int64_t Connection::size() const { return state_->size; }
c10::Device Connection::device() const { return state_->device; }

Group Connection::group(const std::string& name, const std::vector<int64_t>& ranks) const {
  using Kind = c10d::ProcessGroup::BackendType;
  const auto mine = std::find(ranks.begin(), ranks.end(), state_->rank);
  core::check_value(mine != ranks.end() && std::is_sorted(ranks.begin(), ranks.end()),
                    "[comm] a group is made by its own ranks, named in ascending order; got group '", name,
                    "' on rank ", state_->rank);
  const auto here = state_->watch->position().enter("connecting the ranks of group '" + name + "'");
  const int size = int(ranks.size()), rank = int(mine - ranks.begin());
  if (size == 1) return Group(name, c10::make_intrusive<c10d::ProcessGroup>(rank, size), state_->watch);
  return with_context(core::concatenate("connecting the ", size, " ranks of group '", name, "'"), [&] {
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        core::concatenate("trireme/", name, "/", ranks.front(), "/", state_->groups[{name, ranks.front()}]++),
        state_->store);
    meet(*store, "here", ranks, state_->rank, state_->timeout);
    BackendOptions options{store, rank, size, state_->timeout, state_->local};
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::DeviceType::CPU, Kind::GLOO, make_gloo_backend(options));
    group->setDefaultBackend(Kind::GLOO);
    // A rank that leaves the group at once must not close its ends while another still connects to them.
    meet(*store, "connected", ranks, state_->rank, state_->timeout);
    if (state_->device.is_cuda()) {
      group->setBackend(c10::DeviceType::CUDA, Kind::NCCL, make_nccl_backend(options));
      group->setDefaultBackend(Kind::NCCL);
    }
    return Group(name, group, state_->watch, state_->checks_order);
  });
}

}  // namespace trireme::comm
