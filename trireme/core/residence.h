// Where tensors wait between their uses.
#pragma once

namespace trireme::core {

enum class Residence {
  device,  ///< in the memory of the device that computes
  host,    ///< in this machine's memory; the same where the device is the CPU
  disk,    ///< in a scratch file
};

}  // namespace trireme::core
