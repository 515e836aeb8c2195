// How the program's memory is allocated, on the host and on a GPU.
#pragma once

#include <string>

namespace trireme::cli {

/// Lets LibTorch's CUDA allocator grow its segments, unless the environment configures it: tensors of a long
/// sequence come and go in sizes that leave gaps in fixed ones. Call it before LibTorch allocates anything.
void prefer_expandable_segments();

/// What allocates the host's memory, such as "jemalloc 5.3.0".
std::string host_allocator();

}  // namespace trireme::cli
