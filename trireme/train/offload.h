// The disks and buffers of a run's offloaded states and activations.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "trireme/alst/kept_tensors.h"
#include "trireme/core/disk_store.h"
#include "trireme/core/timeline.h"
#include "trireme/train/options.h"
#include "trireme/zero/adamw.h"
#include "trireme/zero/options.h"

namespace trireme::train {

/// Opens the scratch files that `options` ask for, in this process. Throws `ValueError` where a directory is
/// none.
class Offload {
 public:
  Offload(const Options& options, c10::Device device, const std::shared_ptr<core::Timeline>& timeline);

  const zero::Memory& memory() const { return memory_; }
  const zero::Streaming& streaming() const { return streaming_; }

  /// Where checkpoints put what they keep; null: in memory.
  const std::shared_ptr<alst::Keeper>& keeper() const { return keeper_; }

  /// Of all disks, since they were opened.
  int64_t bytes_read() const;
  int64_t bytes_written() const;

 private:
  std::vector<std::shared_ptr<core::DiskStore>> disks() const;

  zero::Streaming streaming_;
  zero::Memory memory_;
  std::shared_ptr<core::DiskStore> activation_disk_;
  std::shared_ptr<alst::Keeper> keeper_;
};

}  // namespace trireme::train
