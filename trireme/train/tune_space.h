// What `trireme tune` may choose from: the options of ZeRO that trade time for memory, and the values of each
// that are worth a try for a model of a given size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/residence.h"
#include "trireme/train/options.h"

namespace trireme::train {

/// The options that are tuned, all under "zero_optimization".
struct TunedOptions {
  int64_t max_live_parameters = 0;   ///< stage3_max_live_parameters
  int64_t prefetch_bucket_size = 0;  ///< stage3_prefetch_bucket_size
  core::Residence optimizer = core::Residence::device;
  core::Residence parameters = core::Residence::device;
  bool operator==(const TunedOptions&) const = default;
};

/// Elements of a model's parameters, by the units that are gathered and released together.
struct ModelSizes {
  int64_t all = 0;
  int64_t largest_unit = 0;
  int64_t two_largest_units = 0;
};

/// Sizes of the model that `options` name; reads no weights. Throws `ValueError` as `model::read_config`.
ModelSizes model_sizes(const Options& options);

/// One option at a time, in the order in which they are tuned: what costs least throughput comes first.
enum class Knob {
  max_live_parameters,   ///< memory
  prefetch_bucket_size,  ///< communication
  offload_optimizer,     ///< memory, for throughput
  offload_parameters,
};
inline constexpr std::array kKnobs{Knob::max_live_parameters, Knob::prefetch_bucket_size,
                                   Knob::offload_optimizer, Knob::offload_parameters};

/// The machine that a run is tuned for.
struct TuneMachine {
  bool computes_on_cpu = true;  ///< states "on the device" are in host memory anyway
  std::string nvme_path;        ///< directory on a disk that states may wait on; empty: none
};

class TuneSpace {
 public:
  TuneSpace(const Options& options, const ModelSizes& sizes, TuneMachine machine);

  int64_t stage() const { return given_.stage; }
  bool has_disk() const { return !machine_.nvme_path.empty(); }
  /// What the options say.
  TunedOptions given() const;
  /// Whether they say anything but the defaults.
  bool given_is_default() const;
  /// Whether a run does the same under both: a limit beyond the whole model is none, and host memory is where
  /// a CPU computes.
  bool same(const TunedOptions& a, const TunedOptions& b) const;
  /// `options` with each value of `knob` that the stage and the machine allow, the most memory first.
  std::vector<TunedOptions> around(const TunedOptions& options, Knob knob) const;
  /// As "zero_optimization.KEY=VALUE", what differs from the given options.
  std::vector<std::string> overrides(const TunedOptions& options) const;

 private:
  std::vector<int64_t> limits() const;
  std::vector<int64_t> buckets() const;
  std::vector<core::Residence> places(core::Residence given) const;
  int64_t effective(int64_t elements) const;
  core::Residence effective(core::Residence residence) const;

  ZeroOptions given_;
  ModelSizes sizes_;
  TuneMachine machine_;
};

/// "stage3_max_live_parameters=1600000, offload_optimizer=nvme": what differs from `given`.
std::string difference(const TunedOptions& options, const TunedOptions& given);

}  // namespace trireme::train
