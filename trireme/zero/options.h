// What ZeRO partitions over the ranks, and in which types and places it keeps it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "trireme/core/buffer_pool.h"
#include "trireme/core/disk_store.h"
#include "trireme/core/residence.h"

namespace trireme::zero {

/// ZeRO's stages (arXiv:1910.02054, section 3) are three switches of one mechanism; each includes the one
/// above it.
enum class Stage {
  replicated = 0,        ///< every rank holds everything; gradients are summed
  optimizer_states = 1,  ///< masters and moments are partitioned
  gradients = 2,         ///< and the gradients that wait for the step
  parameters = 3,        ///< and the parameters themselves
};

/// How gradients of the ranks are combined.
enum class GradientReduction {
  sum,   ///< where each rank's loss is its share of one global loss, as in the native trainer
  mean,  ///< where each rank's loss is a mean of its own, as scripts written for DeepSpeed assume
};

struct Options {
  Stage stage = Stage::parameters;
  at::ScalarType dtype = at::kFloat;  ///< of parameters and of their gradients, unless a spec says otherwise
  /// Partitioned parameters are stored in this; the same as `dtype` unless given. With fp32 below bf16, a
  /// shard is its own master, and is rounded each time that it is gathered.
  std::optional<at::ScalarType> stored_dtype;
  /// Gathered values travel in this; the narrower of the two above unless given.
  std::optional<at::ScalarType> gather_dtype;
  at::ScalarType reduction_dtype =
      at::kFloat;  ///< gradients of the ranks are added up in this, or the dtype if wider
  GradientReduction reduction = GradientReduction::sum;
  at::Device device = at::kCPU;
  /// Parameters of fewer elements are replicated under stage 3 too; all else about them stays partitioned.
  int64_t persistence_threshold = 0;
  core::Residence parameters_on = core::Residence::device;  ///< shards of stage 3, between their gathers
  core::Residence optimizer_on = core::Residence::device;   ///< masters, moments, reduced gradients

  bool partitions_optimizer() const { return stage >= Stage::optimizer_states; }
  bool partitions_gradients() const { return stage >= Stage::gradients; }
  bool partitions_parameters() const { return stage >= Stage::parameters; }
};

/// What all units of a rank share: the buffers that come and go, and the disks where `Options` place
/// something on one. The disks' pool must be the same.
struct Memory {
  Memory(std::shared_ptr<core::BufferPool> buffers,  // NOLINT(google-explicit-constructor): mostly all of it
         std::shared_ptr<core::DiskStore> parameters = nullptr,
         std::shared_ptr<core::DiskStore> optimizer = nullptr)
      : pool(std::move(buffers)),
        parameter_disk(std::move(parameters)),
        optimizer_disk(std::move(optimizer)) {}

  std::shared_ptr<core::BufferPool> pool;
  std::shared_ptr<core::DiskStore> parameter_disk, optimizer_disk;
};

}  // namespace trireme::zero
