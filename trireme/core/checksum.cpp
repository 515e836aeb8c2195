#include "trireme/core/checksum.h"

#include <xxhash.h>

namespace trireme::core {

uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace trireme::core
