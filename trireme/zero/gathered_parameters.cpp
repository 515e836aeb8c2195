#include "trireme/zero/gathered_parameters.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::zero {

using at::Tensor;

std::vector<ParameterReference> parameters_of(const std::vector<Unit*>& units) {
  std::vector<ParameterReference> all;
  for (Unit* unit : units)
    for (size_t i = 0; i < unit->size(); ++i) all.push_back({unit, i});
  return all;
}

GatheredParameters::GatheredParameters(std::vector<ParameterReference> parameters,
                                       std::optional<int64_t> modifier_rank)
    : parameters_(std::move(parameters)),
      modifier_rank_(modifier_rank),
      exceptions_(std::uncaught_exceptions()) {
  for (const auto& [unit, index] : parameters_) {
    core::check_value(index < unit->size(), "[zero] unit '", unit->name(), "' has ", unit->size(),
                      " parameters; got parameter ", index, "; count from 0");
    if (std::find(units_.begin(), units_.end(), unit) == units_.end()) units_.push_back(unit);
  }
  if (modifier_rank_ && !units_.empty())
    core::check_value(*modifier_rank_ >= 0 && *modifier_rank_ < group().size(),
                      "[zero] the modifier must be one of the group's ", group().size(), " ranks; got ",
                      *modifier_rank_);
  for (Unit* unit : units_) gathered_.push_back(std::make_unique<Gathered>(*unit));
  if (modifier_rank_) return;
  for (const auto& [unit, index] : parameters_)
    seen_.push_back({unit->place(index).flat->value_checksum(unit->place(index).index), unit->generation()});
}

GatheredParameters::~GatheredParameters() noexcept(false) {
  if (!open_) return;
  if (std::uncaught_exceptions() > exceptions_)
    close();
  else
    finish();
}

void GatheredParameters::close() {
  open_ = false;
  gathered_.clear();
}

void GatheredParameters::finish() {
  core::check_value(open_, "[zero] a scope of gathered parameters ends once; got a second end");
  std::optional<size_t> written;
  if (modifier_rank_)
    publish();
  else
    written = first_written();
  close();
  if (!written) return;
  const auto& [unit, index] = parameters_[*written];
  throw core::ValueError(core::concatenate(
      "[zero] gathered parameters are only read unless one rank is named to modify them; got a write to '",
      unit->spec(index).name, "' of unit '", unit->name(),
      "', on this rank or another; give a modifier_rank: what that rank writes then reaches all"));
}

void GatheredParameters::publish() {
  for (const auto& [unit, index] : parameters_) {
    const auto& [flat, place] = unit->place(index);
    Tensor values = flat->parameter(place).detach();
    if (group().size() > 1 && values.numel() > 0)
      group().broadcast(values, *modifier_rank_, "what was written to '" + unit->spec(index).name + "'");
    flat->adopt_gathered(place);
  }
  for (Unit* unit : units_) unit->publish();
}

// The same on every rank.
std::optional<size_t> GatheredParameters::first_written() const {
  if (parameters_.empty()) return std::nullopt;
  Tensor written = at::zeros({int64_t(parameters_.size())}, at::kLong);
  auto* flags = written.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [unit, index] = parameters_[i];
    const auto& [flat, place] = unit->place(index);
    // A scope inside this one may have published values meanwhile.
    const auto published =
        unit->generation() == seen_[i].generation ? std::nullopt : flat->adopted_checksum(place);
    flags[i] = flat->value_checksum(place) != published.value_or(seen_[i].checksum);
  }
  written = group()
                .all_reduce(written.to(units_.front()->options().device), "whether parameters were written",
                            comm::Reduction::max)
                .to(at::kCPU);
  const auto* all = written.const_data_ptr<int64_t>();
  const auto* found = std::find(all, all + parameters_.size(), 1);
  return found == all + parameters_.size() ? std::nullopt : std::optional(size_t(found - all));
}

void initialize(const std::vector<Unit*>& units,
                const std::function<void(const ParameterSpec& spec, Tensor& values)>& initializer) {
  for (Unit* unit : units) {
    GatheredParameters gathered(parameters_of({unit}), /*modifier_rank=*/0);
    if (unit->group().rank() == 0)
      for (size_t i = 0; i < unit->size(); ++i) {
        Tensor values = unit->parameter(i).detach();
        initializer(unit->spec(i), values);
      }
    gathered.finish();
  }
}

}  // namespace trireme::zero
