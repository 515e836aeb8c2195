// This process's place among the ranks, and how groups of them are made.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/environment.h"
#include "trireme/comm/group.h"

namespace c10d {
class Store;
}

namespace trireme::comm {

/// Cheap to copy; copies share one store. From its start until the last copy and group are gone, the other
/// ranks can see what this one does (`Group::position`).
class Connection {
 public:
  /// Finds the other ranks through the store that `environment` names; rank 0 serves it unless whoever
  /// started the ranks does. `timeout` limits this and every later wait. Throws `core::CommunicationError`
  /// when ranks are missing.
  static Connection open(const Environment& environment, c10::Device device,
                         std::chrono::milliseconds timeout);

  /// Over a store that the caller has, such as one shared by threads. `local`: all ranks are on this machine.
  /// `store_on_rank_0`: it ends with rank 0. `checks_order`: of its groups, see `Group`.
  Connection(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, c10::Device device,
             std::chrono::milliseconds timeout, bool local, bool store_on_rank_0 = false,
             bool checks_order = false);

  int64_t rank() const;
  int64_t size() const;
  c10::Device device() const;

  /// Connects world ranks `ranks`, ascending, of which this rank is one. All of them must call this, in the
  /// same order, with the same `name`.
  Group group(const std::string& name, const std::vector<int64_t>& ranks) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme::comm
