// A run's options as the memory planner wants them.
#pragma once

#include <cstdint>

#include "trireme/plan/setting.h"
#include "trireme/train/options.h"

namespace trireme::train {

/// What `options` take on each of `ranks`. `threads`: that compute on a CPU, of each rank.
plan::Setting plan_setting(const Options& options, const model::Config& config, int64_t ranks, bool on_cpu,
                           int64_t threads);

}  // namespace trireme::train
