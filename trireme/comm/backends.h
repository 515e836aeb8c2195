// Which backends this build has. gloo is always there.
#pragma once

namespace trireme::comm {

/// Whether ranks on CUDA devices can talk to each other.
bool has_nccl();

}  // namespace trireme::comm
