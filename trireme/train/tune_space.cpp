#include "trireme/train/tune_space.h"

#include <algorithm>
#include <functional>

#include "trireme/model/config.h"
#include "trireme/model/parameters.h"
#include "trireme/train/option_names.h"

namespace trireme::train {
namespace {

using core::Residence;

constexpr double kPadding = 1.02;  // units are gathered with their padding

// A limit that `elements` fit under, with two digits that a reader can compare.
int64_t limit_for(int64_t elements) {
  const auto needed = int64_t(double(elements) * kPadding) + 1;
  int64_t unit = 1;
  while (needed / unit >= 100) unit *= 10;
  return (needed + unit - 1) / unit * unit;
}

TunedOptions tuned_options(const ZeroOptions& zero) {
  return {.max_live_parameters = zero.schedule.max_live_parameters,
          .prefetch_bucket_size = zero.schedule.prefetch_bucket_size,
          .optimizer = zero.optimizer.device,
          .parameters = zero.parameters.device};
}

}  // namespace

ModelSizes model_sizes(const Options& options) {
  const auto config = model_config(options.model);
  std::vector<int64_t> units;
  ModelSizes sizes;
  for (const auto& plan : model::plan_units(config)) {
    int64_t elements = 0;
    for (const auto& spec : plan.specs()) elements += spec.numel();
    units.push_back(elements);
    sizes.all += elements;
  }
  std::sort(units.begin(), units.end(), std::greater<>());
  sizes.largest_unit = units[0];  // there are an embedding and a norm at least
  sizes.two_largest_units = units[0] + units[1];
  return sizes;
}

TuneSpace::TuneSpace(const Options& options, const ModelSizes& sizes, TuneMachine machine)
    : given_(options.zero), sizes_(sizes), machine_(std::move(machine)) {}

TunedOptions TuneSpace::given() const { return tuned_options(given_); }

bool TuneSpace::given_is_default() const { return given() == tuned_options(ZeroOptions{}); }

int64_t TuneSpace::effective(int64_t elements) const { return std::min(elements, limit_for(sizes_.all)); }

Residence TuneSpace::effective(Residence residence) const {
  return residence == Residence::device && machine_.computes_on_cpu ? Residence::host : residence;
}

bool TuneSpace::same(const TunedOptions& a, const TunedOptions& b) const {
  return effective(a.max_live_parameters) == effective(b.max_live_parameters) &&
         effective(a.prefetch_bucket_size) == effective(b.prefetch_bucket_size) &&
         effective(a.optimizer) == effective(b.optimizer) &&
         effective(a.parameters) == effective(b.parameters);
}

// No limit, half of the model, the unit in use and the next one, the unit in use alone.
std::vector<int64_t> TuneSpace::limits() const {
  if (stage() < 3) return {};
  std::vector<int64_t> all{ZeroOptions{}.schedule.max_live_parameters, limit_for(sizes_.all / 2),
                           limit_for(sizes_.two_largest_units), limit_for(sizes_.largest_unit)};
  std::sort(all.begin(), all.end(), std::greater<>());
  return all;
}

std::vector<int64_t> TuneSpace::buckets() const {
  if (stage() < 3) return {};
  return {ZeroOptions{}.schedule.prefetch_bucket_size, limit_for(sizes_.two_largest_units),
          limit_for(sizes_.largest_unit), 0};
}

std::vector<Residence> TuneSpace::places(Residence given) const {
  std::vector<Residence> all{Residence::device, Residence::host};
  if (has_disk() || given == Residence::disk) all.push_back(Residence::disk);
  return all;
}

std::vector<TunedOptions> TuneSpace::around(const TunedOptions& options, Knob knob) const {
  std::vector<TunedOptions> all;
  const auto add = [&](auto TunedOptions::*option, const auto& values) {
    for (const auto& value : values) {
      all.push_back(options);
      all.back().*option = value;
    }
  };
  switch (knob) {
    case Knob::max_live_parameters:
      add(&TunedOptions::max_live_parameters, limits());
      break;
    case Knob::prefetch_bucket_size:
      add(&TunedOptions::prefetch_bucket_size, buckets());
      break;
    case Knob::offload_optimizer:
      if (stage() >= 1) add(&TunedOptions::optimizer, places(given().optimizer));
      break;
    case Knob::offload_parameters:
      if (stage() == 3) add(&TunedOptions::parameters, places(given().parameters));
      break;
  }
  return all;
}

std::vector<std::string> TuneSpace::overrides(const TunedOptions& options) const {
  std::vector<std::string> all;
  const auto set = [&](const std::string& key, const std::string& value) {
    all.push_back("zero_optimization." + key + "=" + value);
  };
  const auto place = [&](const std::string& key, Residence residence, Residence before) {
    if (residence == before) return;
    set(key + ".device", name_of(residence, kResidences));
    // As JSON: a path may look like a number.
    if (residence == Residence::disk) set(key + ".nvme_path", nlohmann::json(machine_.nvme_path).dump());
  };
  const TunedOptions before = given();
  if (options.max_live_parameters != before.max_live_parameters)
    set("stage3_max_live_parameters", std::to_string(options.max_live_parameters));
  if (options.prefetch_bucket_size != before.prefetch_bucket_size)
    set("stage3_prefetch_bucket_size", std::to_string(options.prefetch_bucket_size));
  place("offload_optimizer", options.optimizer, before.optimizer);
  place("offload_param", options.parameters, before.parameters);
  return all;
}

std::string difference(const TunedOptions& options, const TunedOptions& given) {
  std::string text;
  const auto add = [&](const char* key, const std::string& value) {
    text += (text.empty() ? "" : ", ") + std::string(key) + " " + value;
  };
  if (options.max_live_parameters != given.max_live_parameters)
    add("stage3_max_live_parameters", std::to_string(options.max_live_parameters));
  if (options.prefetch_bucket_size != given.prefetch_bucket_size)
    add("stage3_prefetch_bucket_size", std::to_string(options.prefetch_bucket_size));
  if (options.optimizer != given.optimizer) add("offload_optimizer", name_of(options.optimizer, kResidences));
  if (options.parameters != given.parameters) add("offload_param", name_of(options.parameters, kResidences));
  return text;
}

}  // namespace trireme::train
