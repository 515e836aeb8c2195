// A short number that tells whether bytes have changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::core {

/// XXH3, 64 bits: equal bytes give equal numbers; others the same one by chance only. Not against an
/// adversary.
uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace trireme::core
