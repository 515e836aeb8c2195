// What carries collectives between ranks: gloo for host memory, NCCL for CUDA where torch has it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace trireme::comm {

/// What a backend needs to know of its group. `local`: all ranks are on this machine.
struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{600'000};
  bool local = true;
};

/// Connects to every other rank, within the time limit. The network interface is that of GLOO_SOCKET_IFNAME
/// where it is set, else loopback for local ranks, else the one that this machine's host name resolves to.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendOptions& options);

/// Connects on first use. Throws `core::ValueError` where this build has no NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendOptions& options);

}  // namespace trireme::comm
