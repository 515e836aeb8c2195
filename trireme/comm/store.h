// The key-value store through which ranks find each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::comm {

/// Serves a store on this machine for as long as it lives. Whoever starts the ranks holds it, so that no
/// rank's end takes it away from the others.
class StoreServer {
 public:
  /// Listens on `port`; 0 lets the system choose a free one. Throws when the port is taken.
  explicit StoreServer(int port = 0);
  ~StoreServer();
  StoreServer(StoreServer&&) noexcept;
  StoreServer& operator=(StoreServer&&) noexcept;

  int port() const;

  /// Where a rank was when it was last heard from: "last heard from 0.3 s ago, in step 12, backward"; empty
  /// where it never was. Of ranks whose keys in the store have no prefix, as those of our launcher have none.
  std::string last_seen(int64_t rank) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
