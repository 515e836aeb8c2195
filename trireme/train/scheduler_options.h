// The `scheduler` section of the options: DeepSpeed's names and defaults.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "trireme/train/json_reader.h"
#include "trireme/train/options.h"
#include "trireme/train/scheduler.h"

namespace trireme::train {

/// Reads {"type": ..., "params": {...}} under the key "scheduler" of the options. `steps` is the run's, the
/// default of `total_num_steps`. Throws `ValueError` for a combination that cannot be, such as a warm-up
/// longer than the total.
Scheduler read_scheduler(const ObjectReader& options, const OptimizerOptions& optimizer, int64_t steps);

/// A note, one line without its end, where the warm-up is longer than the run's `steps`, as DeepSpeed's
/// default of 1000 is for a short one; else empty.
std::string warmup_note(const Scheduler& scheduler, int64_t steps);

/// What `read_scheduler` reads as `scheduler`; null for a constant rate.
nlohmann::json scheduler_to_json(const Scheduler& scheduler);

}  // namespace trireme::train
