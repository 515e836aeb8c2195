#include "trireme/plan/state_memory.h"

#include <algorithm>

#include "trireme/zero/flat_layout.h"

namespace trireme::plan {
namespace {

using core::Residence;

class UnitCounter {
 public:
  explicit UnitCounter(const Setting& setting) : s_(setting) {}

  // Parameters of one kind, as a zero::FlatParameters has them.
  void add(const std::vector<zero::ParameterSpec>& specs, bool partitioned, bool trainable) {
    if (specs.empty()) return;
    const zero::FlatLayout layout(specs, s_.ranks);
    const int64_t all = layout.padded(), shard = layout.shard_size(), range = s_.stage >= 1 ? shard : all,
                  element = s_.element_bytes(), stored = partitioned && s_.stored_fp32 ? kWide : element;
    const Residence values_on = partitioned ? s_.parameters_on : Residence::device;
    unit_.parameters.add(values_on, s_.on_cpu, partitioned ? shard * stored : all * element);
    if (partitioned) {
      unit_.gathered_elements += all;
      const bool is_there = s_.ranks == 1 && stored == element && at_hand(values_on);
      if (!is_there) unit_.gathered += all * element;
    }
    if (!trainable) return;
    if (!is_own_master(stored, values_on)) unit_.optimizer.add(s_.optimizer_on, s_.on_cpu, range * kWide);
    unit_.optimizer.add(s_.optimizer_on, s_.on_cpu, 2 * range * kWide);
    // Under stage 1 the reduced gradient takes the place of the whole one, where that is.
    if (s_.stage == 1) unit_.whole_gradient += all * kWide;
    if (s_.stage != 1 || !at_hand(s_.optimizer_on))
      unit_.gradients.add(s_.optimizer_on, s_.on_cpu, range * kWide);
    if (s_.stage < 2) return;
    unit_.collected += all * element;
    if (s_.ranks > 1) unit_.received += all * on_the_way(element);
    unit_.received += shard * kWide;
  }

  const UnitMemory& unit() const { return unit_; }

 private:
  // Bytes of an element beside the collected one: a CPU receives it from all ranks before it sums, a GPU sums
  // on the way, in fp32.
  int64_t on_the_way(int64_t element) const {
    if (s_.on_cpu) return element;
    return element < kWide ? kWide : 0;
  }
  bool at_hand(Residence where) const {
    return where == Residence::device || (s_.on_cpu && where == Residence::host);
  }
  bool is_own_master(int64_t stored, Residence values_on) const {
    if (stored != kWide) return false;
    if (values_on == Residence::disk || s_.optimizer_on == Residence::disk)
      return values_on == s_.optimizer_on;
    return s_.on_cpu || values_on == s_.optimizer_on;
  }

  const Setting& s_;
  UnitMemory unit_;
};

}  // namespace

void Places::add(Residence where, bool on_cpu, int64_t bytes) {
  if (where == Residence::disk)
    disk += bytes;
  else if (where == Residence::host && !on_cpu)
    host += bytes;
  else
    device += bytes;
}

std::vector<UnitMemory> unit_memory(const Setting& setting) {
  auto plans = model::plan_units(setting.config);
  model::apply_rules(setting.rules, plans);
  std::vector<UnitMemory> units;
  for (const auto& plan : plans) {
    UnitCounter counter(setting);
    for (bool partitioned : {true, false})
      for (bool trainable : {true, false}) {
        std::vector<zero::ParameterSpec> specs;
        for (const auto& spec : plan.specs()) {
          const bool is_partitioned = setting.stage == 3 && spec.numel() >= setting.persistence_threshold;
          if (is_partitioned == partitioned && spec.trainable == trainable) specs.push_back(spec);
        }
        counter.add(specs, partitioned, trainable);
      }
    units.push_back(counter.unit());
  }
  return units;
}

int64_t gathered_at_once(const Setting& setting, const std::vector<UnitMemory>& units) {
  int64_t all = 0, elements = 0, largest = 0;
  for (const auto& unit : units) {
    all += unit.gathered;
    elements += unit.gathered_elements;
    largest = std::max(largest, unit.gathered_elements);
  }
  if (elements == 0) return 0;
  const int64_t kept = std::min(setting.max_live_parameters, setting.max_reuse_distance);
  const int64_t ahead =
      setting.prefetch > 0 ? std::min(setting.prefetch + largest, setting.max_live_parameters) : 0;
  const int64_t live = std::min(elements, std::max(kept, largest + ahead));
  return int64_t(double(all) * (double(live) / double(elements)));
}

}  // namespace trireme::plan
