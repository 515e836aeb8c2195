#include "trireme/train/offload.h"

#include <algorithm>

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

std::shared_ptr<core::DiskStore> open(const OffloadOptions& options, double time_limit_seconds,
                                      int64_t write_behind_bytes,
                                      const std::shared_ptr<core::BufferPool>& pool,
                                      const std::shared_ptr<core::Timeline>& timeline) {
  if (options.device != core::Residence::disk) return nullptr;
  return std::make_shared<core::DiskStore>(
      core::DiskStoreOptions{.directory = options.nvme_path,
                             .file = {.engine = options.io, .time_limit_seconds = time_limit_seconds},
                             .write_behind_bytes = write_behind_bytes},
      pool, timeline);
}

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
}

int64_t Offload::bytes_read() const {
  int64_t sum = 0;
  for (const auto& disk : {memory_.parameter_disk, memory_.optimizer_disk})
    sum += disk ? disk->bytes_read() : 0;
  return sum;
}

int64_t Offload::bytes_written() const {
  int64_t sum = 0;
  for (const auto& disk : {memory_.parameter_disk, memory_.optimizer_disk})
    sum += disk ? disk->bytes_written() : 0;
  return sum;
}

}  // namespace trireme::train
