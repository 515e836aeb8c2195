// How the program's memory is allocated, on the host and on a GPU.
#pragma once

#include <string>

namespace trireme::cli {

/// Unless the environment configures LibTorch's allocators: that of a GPU may grow its segments, since
/// tensors of a long sequence come and go in sizes that leave gaps in fixed ones, and that of page-locked
/// memory rounds no more than a MiB up to a power of two, which would double what waits on the host. Call it
/// before LibTorch allocates anything.
void prefer_tight_allocation();

/// What allocates the host's memory, such as "jemalloc 5.3.0".
std::string host_allocator();

}  // namespace trireme::cli
