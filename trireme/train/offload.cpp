#include "trireme/train/offload.h"

#include <algorithm>
#include <limits>

#include "trireme/alst/activation_offload.h"
#include "trireme/alst/disk_target.h"
#include "trireme/alst/host_target.h"

namespace trireme::train {
namespace {

constexpr int64_t kBuffersOfAPiece = 4;  // gradient, master and two moments

// Of the pieces that fit in the buffers, one is updated; the others are read ahead or written behind.
struct Pieces {
  int64_t read_ahead = 0, written_behind = 0;
};

Pieces share_out(const OffloadOptions& options) {
  const int64_t spare = std::max<int64_t>(1, options.buffer_count / kBuffersOfAPiece) - 1;
  Pieces pieces;
  if (options.pipeline_read) pieces.read_ahead = options.pipeline_write ? (spare + 1) / 2 : spare;
  if (options.pipeline_write) pieces.written_behind = spare - pieces.read_ahead;
  return pieces;
}

std::shared_ptr<core::DiskStore> open(const std::string& directory, core::IoEngine io,
                                      double time_limit_seconds, int64_t write_behind_bytes,
                                      const std::shared_ptr<core::BufferPool>& pool,
                                      const std::shared_ptr<core::Timeline>& timeline) {
  return std::make_shared<core::DiskStore>(
      core::DiskStoreOptions{.directory = directory,
                             .file = {.engine = io, .time_limit_seconds = time_limit_seconds},
                             .write_behind_bytes = write_behind_bytes},
      pool, timeline);
}

std::shared_ptr<core::DiskStore> open(const OffloadOptions& options, double time_limit_seconds,
                                      int64_t write_behind_bytes,
                                      const std::shared_ptr<core::BufferPool>& pool,
                                      const std::shared_ptr<core::Timeline>& timeline) {
  if (options.device != core::Residence::disk) return nullptr;
  return open(options.nvme_path, options.io, time_limit_seconds, write_behind_bytes, pool, timeline);
}

// The keeper says how many tensors may be on their way; the store need not.
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

}  // namespace

Offload::Offload(const Options& options, c10::Device device, const std::shared_ptr<core::Timeline>& timeline)
    : memory_(std::make_shared<core::BufferPool>(
          !device.is_cpu() && (options.zero.parameters.pin_memory || options.zero.optimizer.pin_memory))) {
  const auto& optimizer = options.zero.optimizer;
  const Pieces pieces = share_out(optimizer);
  streaming_ = {.elements = optimizer.buffer_size, .ahead = pieces.read_ahead};
  const int64_t behind = pieces.written_behind * kBuffersOfAPiece * optimizer.buffer_size * 4;
  memory_.optimizer_disk = open(optimizer, options.timeout_seconds, behind, memory_.pool, timeline);
  memory_.parameter_disk =
      open(options.zero.parameters, options.timeout_seconds, behind, memory_.pool, timeline);

  const auto& activations = options.checkpoint.offload;
  if (activations.device == core::Residence::device) return;
  std::shared_ptr<alst::OffloadTarget> target;
  if (activations.device == core::Residence::disk) {
    const auto pool = std::make_shared<core::BufferPool>(!device.is_cpu() && activations.use_pin_memory,
                                                         activations.max_cpu_buffer_pool_count);
    activation_disk_ =
        open(activations.nvme_path, activations.io, options.timeout_seconds, kNoLimit, pool, timeline);
    target = std::make_shared<alst::DiskTarget>(activation_disk_, pool);
  } else {
    target = std::make_shared<alst::HostTarget>(
        alst::HostTargetOptions{.pinned = !device.is_cpu() && activations.use_pin_memory,
                                .side_stream = activations.use_streams,
                                .idle_buffers = activations.max_cpu_buffer_pool_count});
  }
  const auto what = activations.inputs_only ? alst::OffloadedTensors::inputs : alst::OffloadedTensors::all;
  keeper_ = std::make_shared<alst::ActivationOffload>(
      alst::ActivationOffloadOptions{.what = what,
                                     .min_bytes = activations.min_offload_bytes,
                                     .leaving_at_once = activations.max_fwd_stash_count,
                                     .keep_last = activations.keep_last_count},
      target);
}

std::vector<std::shared_ptr<core::DiskStore>> Offload::disks() const {
  std::vector<std::shared_ptr<core::DiskStore>> open;
  for (const auto& disk : {memory_.parameter_disk, memory_.optimizer_disk, activation_disk_})
    if (disk) open.push_back(disk);
  return open;
}

int64_t Offload::bytes_read() const {
  int64_t sum = 0;
  for (const auto& disk : disks()) sum += disk->bytes_read();
  return sum;
}

int64_t Offload::bytes_written() const {
  int64_t sum = 0;
  for (const auto& disk : disks()) sum += disk->bytes_written();
  return sum;
}

}  // namespace trireme::train
