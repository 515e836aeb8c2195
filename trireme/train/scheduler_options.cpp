#include "trireme/train/scheduler_options.h"

#include "trireme/core/check.h"
#include "trireme/train/option_names.h"

namespace trireme::train {
namespace {

using nlohmann::json;

constexpr Range kRatio{.high = 1, .text = "a number from 0 to 1"};
constexpr Range kMomentum{.high = 1, .high_allowed = false, .text = "a number from 0 to below 1"};

enum class Type { warmup, warmup_decay, warmup_cosine, one_cycle };
constexpr Choices<Type, 4> kTypes{{{"WarmupLR", Type::warmup},
                                   {"WarmupDecayLR", Type::warmup_decay},
                                   {"WarmupCosineLR", Type::warmup_cosine},
                                   {"OneCycle", Type::one_cycle}}};

Warmup read_warmup(const ObjectReader& params) {
  Warmup warmup;
  warmup.steps = params.integer("warmup_num_steps", warmup.steps, 1, kMostSteps);
  warmup.type = params.choice<WarmupType>("warmup_type", warmup.type, kWarmupTypes);
  return warmup;
}

int64_t read_total(const ObjectReader& params, const Warmup& warmup, int64_t steps) {
  const int64_t total = params.integer("total_num_steps", steps, 1, kMostSteps);
  core::check_value(total >= warmup.length(), "[options] ", params.path_of("warmup_num_steps"),
                    " must be at most total_num_steps (by default the run's steps); got ", warmup.length(),
                    " warm-up steps of ", total, " in all; set warmup_num_steps");
  return total;
}

void check_rates(const ObjectReader& params, std::string_view low_key, double low, double high) {
  core::check_value(low <= high, "[options] ", params.path_of(low_key), " must be at most the largest rate, ",
                    high, "; got ", low);
}

WarmupLR read_warmup_lr(const ObjectReader& params, double lr) {
  WarmupLR schedule;
  schedule.min_lr = params.number("warmup_min_lr", schedule.min_lr, kNotNegative);
  schedule.max_lr = params.number("warmup_max_lr", lr, kNotNegative);
  schedule.warmup = read_warmup(params);
  check_rates(params, "warmup_min_lr", schedule.min_lr, schedule.max_lr);
  return schedule;
}

WarmupDecayLR read_warmup_decay(const ObjectReader& params, int64_t steps) {
  const WarmupLR rise = read_warmup_lr(params, WarmupDecayLR{}.max_lr);
  return {rise.min_lr, rise.max_lr, rise.warmup, read_total(params, rise.warmup, steps)};
}

WarmupCosineLR read_warmup_cosine(const ObjectReader& params, double lr, int64_t steps) {
  WarmupCosineLR schedule;
  schedule.lr = lr;
  schedule.min_ratio = params.number("warmup_min_ratio", schedule.min_ratio, kRatio);
  schedule.cos_min_ratio = params.number("cos_min_ratio", schedule.cos_min_ratio, kRatio);
  schedule.warmup = read_warmup(params);
  schedule.total_steps = read_total(params, schedule.warmup, steps);
  return schedule;
}

void read_momentum(const ObjectReader& params, OneCycle& cycle, int64_t steps) {
  cycle.cycle_momentum = params.boolean("cycle_momentum", cycle.cycle_momentum);
  cycle.min_momentum = params.number("cycle_min_mom", cycle.min_momentum, kMomentum);
  cycle.max_momentum = params.number("cycle_max_mom", cycle.max_momentum, kMomentum);
  cycle.decay_momentum_rate = params.number("decay_mom_rate", cycle.decay_momentum_rate, kNotNegative);
  core::check_value(cycle.min_momentum <= cycle.max_momentum, "[options] ", params.path_of("cycle_min_mom"),
                    " must be at most cycle_max_mom; got ", cycle.min_momentum, " and ", cycle.max_momentum);
  const double last = cycle.betas(steps - 1, {}).first;
  core::check_value(last < 1, "[options] ", params.path_of("decay_mom_rate"),
                    " must leave the momentum below 1; got ", last, " at the last step; lower it");
}

OneCycle read_one_cycle(const ObjectReader& params, double lr, int64_t steps) {
  OneCycle cycle;
  cycle.max_lr = params.number("cycle_max_lr", lr, kNotNegative);
  cycle.min_lr = params.number("cycle_min_lr", cycle.max_lr / 10, kNotNegative);
  cycle.first_steps = params.integer("cycle_first_step_size", cycle.first_steps, 1, kMostSteps);
  cycle.second_steps = params.integer("cycle_second_step_size", cycle.first_steps, 0, kMostSteps);
  cycle.first_stairs = params.integer("cycle_first_stair_count", cycle.first_stairs, 0, kMostSteps);
  cycle.second_stairs = params.integer("cycle_second_stair_count", cycle.first_stairs, 0, kMostSteps);
  cycle.decay_step_size = params.integer("decay_step_size", cycle.decay_step_size, 0, kMostSteps);
  cycle.decay_lr_rate = params.number("decay_lr_rate", cycle.decay_lr_rate, kNotNegative);
  check_rates(params, "cycle_min_lr", cycle.min_lr, cycle.max_lr);
  read_momentum(params, cycle, steps);
  return cycle;
}

json warmup_to_json(const Warmup& warmup) {
  return {{"warmup_num_steps", warmup.steps}, {"warmup_type", name_of(warmup.type, kWarmupTypes)}};
}

json section(Type type, json params, const json& more = json::object()) {
  params.update(more);
  return {{"type", name_of(type, kTypes)}, {"params", std::move(params)}};
}

/// `scheduler_to_json` of each alternative.
struct Writer {
  json operator()(const ConstantLR&) const { return nullptr; }

  json operator()(const WarmupLR& s) const {
    return section(Type::warmup, {{"warmup_min_lr", s.min_lr}, {"warmup_max_lr", s.max_lr}},
                   warmup_to_json(s.warmup));
  }

  json operator()(const WarmupDecayLR& s) const {
    return section(
        Type::warmup_decay,
        {{"warmup_min_lr", s.min_lr}, {"warmup_max_lr", s.max_lr}, {"total_num_steps", s.total_steps}},
        warmup_to_json(s.warmup));
  }

  json operator()(const WarmupCosineLR& s) const {
    return section(Type::warmup_cosine,
                   {{"warmup_min_ratio", s.min_ratio},
                    {"cos_min_ratio", s.cos_min_ratio},
                    {"total_num_steps", s.total_steps}},
                   warmup_to_json(s.warmup));
  }

  json operator()(const OneCycle& s) const {
    return section(Type::one_cycle, {{"cycle_min_lr", s.min_lr},
                                     {"cycle_max_lr", s.max_lr},
                                     {"cycle_first_step_size", s.first_steps},
                                     {"cycle_second_step_size", s.second_steps},
                                     {"cycle_first_stair_count", s.first_stairs},
                                     {"cycle_second_stair_count", s.second_stairs},
                                     {"decay_step_size", s.decay_step_size},
                                     {"decay_lr_rate", s.decay_lr_rate},
                                     {"cycle_momentum", s.cycle_momentum},
                                     {"cycle_min_mom", s.min_momentum},
                                     {"cycle_max_mom", s.max_momentum},
                                     {"decay_mom_rate", s.decay_momentum_rate}});
  }
};

Keys params_of(Type type) {
  switch (type) {
    case Type::warmup:
      return {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"};
    case Type::warmup_decay:
      return {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps"};
    case Type::warmup_cosine:
      return {"warmup_min_ratio", "warmup_num_steps", "warmup_type", "cos_min_ratio", "total_num_steps"};
    case Type::one_cycle:
      return {"cycle_min_lr",
              "cycle_max_lr",
              "cycle_first_step_size",
              "cycle_second_step_size",
              "cycle_first_stair_count",
              "cycle_second_stair_count",
              "decay_step_size",
              "decay_lr_rate",
              "cycle_momentum",
              "cycle_min_mom",
              "cycle_max_mom",
              "decay_mom_rate"};
  }
  return {};
}

}  // namespace

Scheduler read_scheduler(const ObjectReader& options, const OptimizerOptions& optimizer, int64_t steps) {
  if (!options.has("scheduler")) return ConstantLR{optimizer.lr};
  const ObjectReader reader = options.object("scheduler", {"type", "params"});
  const Type type = reader.choice<Type>("type", {}, kTypes);
  const ObjectReader params = reader.object("params", params_of(type));
  switch (type) {
    case Type::warmup:
      return read_warmup_lr(params, optimizer.lr);
    case Type::warmup_decay:
      return read_warmup_decay(params, steps);
    case Type::warmup_cosine:
      return read_warmup_cosine(params, optimizer.lr, steps);
    case Type::one_cycle:
      return read_one_cycle(params, optimizer.lr, steps);
  }
  return ConstantLR{optimizer.lr};
}

std::string warmup_note(const Scheduler& scheduler, int64_t steps) {
  const int64_t warmup = std::visit(
      [](const auto& schedule) -> int64_t {
        if constexpr (requires { schedule.warmup; })
          return schedule.warmup.steps;
        else
          return 0;
      },
      scheduler);
  if (warmup <= steps) return "";
  return core::concatenate("note: scheduler.params.warmup_num_steps, ", warmup,
                           ", is more than the run's steps, ", steps,
                           ": the learning rate never reaches its maximum");
}

json scheduler_to_json(const Scheduler& scheduler) { return std::visit(Writer{}, scheduler); }

}  // namespace trireme::train
