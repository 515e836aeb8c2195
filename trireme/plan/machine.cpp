#include "trireme/plan/machine.h"

namespace trireme::plan {

bool fits(const MemoryPlan& plan, const Machine& machine) {
  return plan.device.total() <= machine.device_share() && plan.host.total() <= machine.host_share();
}

LongestSequence longest_sequence(const Setting& setting, const Machine& machine) {
  const int64_t multiple = setting.sequence_ranks;
  LongestSequence longest;
  longest.tokens = longest_sequence(setting, machine.device_share(), machine.host_share(), multiple);
  if (longest.tokens + multiple > longest_planned(setting)) {
    longest.limit = Limit::none;
    return longest;
  }
  Setting next = setting;
  next.sequence = longest.tokens + multiple;
  const bool device_is_short = plan_memory(next).device.total() > machine.device_share();
  longest.limit = device_is_short ? Limit::device : Limit::host;
  return longest;
}

}  // namespace trireme::plan
