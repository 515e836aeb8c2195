// Learning rate schedules: pure functions of the step, with the parameters and the meaning of DeepSpeed's
// schedulers.
//
// `step` counts from 0 and is the optimizer step about to be taken. DeepSpeed moves its scheduler after each
// optimizer step, so that step k runs at `last_batch_iteration == k - 1`, and step 0 at the value set on
// construction: the minimum, which is 0 for WarmupCosineLR whatever its `warmup_min_ratio`. So it is here.
#pragma once

#include <cstdint>
#include <variant>

namespace trireme::train {

/// The first and second decay rates of Adam's moments.
struct Betas {
  double first = 0.9;
  double second = 0.95;
  bool operator==(const Betas&) const = default;
};

enum class WarmupType { log, linear };

/// How the rate rises from 0 to 1 over the first `steps` steps (at least 2: DeepSpeed's floor).
struct Warmup {
  int64_t steps = 1000;
  WarmupType type = WarmupType::log;

  /// `iteration` is DeepSpeed's `last_batch_iteration`, from 0 to below `length()`.
  double fraction(int64_t iteration) const;
  int64_t length() const;
  bool operator==(const Warmup&) const = default;
};

/// No scheduler: the optimizer's own rate.
struct ConstantLR {
  double lr = 1e-4;

  double learning_rate(int64_t step) const;
  bool operator==(const ConstantLR&) const = default;
};

/// From `min_lr` to `max_lr` over the warm-up, then `max_lr`.
struct WarmupLR {
  double min_lr = 0;
  double max_lr = 1e-4;
  Warmup warmup;

  double learning_rate(int64_t step) const;
  bool operator==(const WarmupLR&) const = default;
};

/// As `WarmupLR`, then straight down to `min_lr` at `total_steps`, and `min_lr` from there.
struct WarmupDecayLR {
  double min_lr = 0;
  double max_lr = 1e-3;
  Warmup warmup;
  int64_t total_steps = 1;

  double learning_rate(int64_t step) const;
  bool operator==(const WarmupDecayLR&) const = default;
};

/// Ratios of the optimizer's rate `lr`: from `min_ratio` to 1 over the warm-up, then down a half cosine to
/// `cos_min_ratio` at `total_steps`, and that from there.
struct WarmupCosineLR {
  double lr = 1e-4;
  double min_ratio = 0;
  double cos_min_ratio = 1e-4;
  Warmup warmup;
  int64_t total_steps = 1;

  double learning_rate(int64_t step) const;
  bool operator==(const WarmupCosineLR&) const = default;
};

/// One cycle `min_lr` -> `max_lr` -> `min_lr`, then `min_lr / (1 + decay_lr_rate * steps / decay_step_size)`.
/// Adam's first beta goes the other way, between `max_momentum` and `min_momentum`, while its second is 0.99.
struct OneCycle {
  double min_lr = 1e-5;
  double max_lr = 1e-4;
  int64_t first_steps = 2000;
  int64_t second_steps = 2000;
  int64_t first_stairs = 0;  ///< flat stairs in the rising half; 0: a straight line
  int64_t second_stairs = 0;
  int64_t decay_step_size = 0;  ///< 0: no decay
  double decay_lr_rate = 0;
  bool cycle_momentum = true;
  double min_momentum = 0.8;
  double max_momentum = 0.9;
  double decay_momentum_rate = 0;

  double learning_rate(int64_t step) const;
  /// The optimizer's `own` betas where momentum does not cycle.
  Betas betas(int64_t step, Betas own) const;
  bool operator==(const OneCycle&) const = default;
};

using Scheduler = std::variant<ConstantLR, WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle>;

/// The learning rate of optimizer step `step` (from 0).
double learning_rate(const Scheduler& scheduler, int64_t step);

/// The betas of optimizer step `step` (from 0): `own`, those of the optimizer, unless the scheduler moves
/// them.
Betas betas(const Scheduler& scheduler, int64_t step, Betas own);

}  // namespace trireme::train
