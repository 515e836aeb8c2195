// Ranks as threads of one process, for tests of what ranks do together.
#pragma once

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/comm/connection.h"

namespace trireme::tests {

/// Runs `body` once for each of `size` ranks, all at once, over gloo. A wait that takes longer than 60
/// seconds fails. Rethrows what the rank that failed first threw. `checks_order`: see comm::Group.
inline void run_ranks(int64_t size, const std::function<void(const comm::Connection&)>& body,
                      bool checks_order = false) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        body(comm::Connection(store, rank, size, at::kCPU, std::chrono::seconds(60), /*local=*/true,
                              /*store_on_rank_0=*/false, checks_order));
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

/// The group of all ranks of `connection`.
inline comm::Group world_of(const comm::Connection& connection) {
  std::vector<int64_t> ranks(size_t(connection.size()));
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = int64_t(r);
  return connection.group("world", ranks);
}

}  // namespace trireme::tests
