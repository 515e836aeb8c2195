#include "trireme/train/scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::train {
namespace {

/// How far up the cycle the rate is at `iteration` (from 0) of a cycle: 0 at its ends, 1 at its top.
double cycle_height(const OneCycle& cycle, int64_t iteration) {
  if (iteration == cycle.first_steps + cycle.second_steps) return 0;
  // Integers up to the last division: rounding must not cost a stair, at the top least of all.
  const bool rising = iteration <= cycle.first_steps;
  const int64_t position = rising ? iteration : cycle.first_steps + cycle.second_steps - iteration;
  const int64_t steps = rising ? cycle.first_steps : cycle.second_steps;
  const int64_t stairs = rising ? cycle.first_stairs : cycle.second_stairs;
  if (stairs == 0) return double(position) / double(steps);
  return std::floor(double(position) * double(stairs) / double(steps)) / double(stairs);
}

}  // namespace

int64_t Warmup::length() const { return std::max<int64_t>(2, steps); }

double Warmup::fraction(int64_t iteration) const {
  if (type == WarmupType::linear) return double(iteration) / double(length());
  return std::log(double(iteration + 1)) / std::log(double(length()));
}

double ConstantLR::learning_rate(int64_t) const { return lr; }

double WarmupLR::learning_rate(int64_t step) const {
  const int64_t iteration = step - 1;
  if (iteration < 0) return min_lr;
  return iteration < warmup.length() ? min_lr + (max_lr - min_lr) * warmup.fraction(iteration) : max_lr;
}

double WarmupDecayLR::learning_rate(int64_t step) const {
  const int64_t iteration = step - 1;
  if (iteration < warmup.length()) return WarmupLR{min_lr, max_lr, warmup}.learning_rate(step);
  const double left =
      double(total_steps - iteration) / double(std::max<int64_t>(1, total_steps - warmup.length()));
  return min_lr + (max_lr - min_lr) * std::max(0.0, left);
}

double WarmupCosineLR::learning_rate(int64_t step) const {
  const int64_t iteration = step - 1;
  if (iteration < 0) return 0;
  if (iteration < warmup.length()) return lr * (min_ratio + (1 - min_ratio) * warmup.fraction(iteration));
  // The first step after the warm-up is already one step down the cosine.
  const double progress =
      double(iteration - warmup.length() + 1) / double(std::max<int64_t>(1, total_steps - warmup.length()));
  const double height = (1 + std::cos(std::numbers::pi * std::min(1.0, progress))) / 2;
  return lr * (cos_min_ratio + (1 - cos_min_ratio) * height);
}

double OneCycle::learning_rate(int64_t step) const {
  const int64_t total = first_steps + second_steps;
  // At `step == total` DeepSpeed is still in its cycle branch, at the start of a second cycle: the same
  // minimum.
  if (step <= total) return min_lr + (max_lr - min_lr) * cycle_height(*this, step);
  if (decay_step_size == 0) return min_lr;
  return min_lr / (1 + decay_lr_rate * double(step - total) / double(decay_step_size));
}

Betas OneCycle::betas(int64_t step, Betas own) const {
  if (!cycle_momentum) return own;
  constexpr double kSecond = 0.99;
  if (step == 0) return {min_momentum, kSecond};  // what DeepSpeed sets on construction
  const int64_t total = first_steps + second_steps;
  if (step <= total)
    return {max_momentum - (max_momentum - min_momentum) * cycle_height(*this, step), kSecond};
  if (decay_step_size == 0) return {max_momentum, kSecond};
  return {max_momentum * (1 + decay_momentum_rate * double(step - total) / double(decay_step_size)), kSecond};
}

double learning_rate(const Scheduler& scheduler, int64_t step) {
  return std::visit([step](const auto& schedule) { return schedule.learning_rate(step); }, scheduler);
}

Betas betas(const Scheduler& scheduler, int64_t step, Betas own) {
  const auto* cycle = std::get_if<OneCycle>(&scheduler);
  return cycle ? cycle->betas(step, own) : own;
}

}  // namespace trireme::train
