// How much memory this process and its device hold. Bytes everywhere.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace trireme::core {

/// Resident memory of this process now, from /proc/self/status; 0 where there is no such file.
int64_t resident_bytes();

/// The largest resident memory since the process began, or since `reset_peak_resident_bytes`.
int64_t peak_resident_bytes();

/// Starts the peak anew from what is resident now. False where the kernel refuses; the peak then goes on.
bool reset_peak_resident_bytes();

/// The peak that training memory is judged by: the device allocator's on an accelerator, else the process's.
int64_t peak_memory_bytes(c10::Device device);

}  // namespace trireme::core
