#include "trireme/zero/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "trireme/core/check.h"

namespace trireme::zero {

using at::Tensor;
using core::StoredTensor;

std::vector<AdamWOptions> decayed_and_not(const AdamWOptions& options) {
  AdamWOptions undecayed = options;
  undecayed.weight_decay = 0;
  return {options, undecayed};
}

AdamW::AdamW(const std::vector<Unit*>& units, const Streaming& streaming,
             std::shared_ptr<core::Timeline> timeline)
    : ahead_(streaming.ahead), timeline_(std::move(timeline)) {
  core::check_value(!units.empty(), "[zero] an optimizer needs at least one unit; got none");
  core::check_value(streaming.elements > 0 && streaming.ahead >= 0,
                    "[zero] states stream in pieces of at least one element; got pieces of ",
                    streaming.elements, ", ", streaming.ahead, " ahead");
  for (Unit* unit : units) {
    const size_t before = pieces_.size();
    for (const auto& flat : unit->flats())
      if (flat->is_trainable()) add_pieces(*unit, *flat, streaming);
    if (pieces_.size() > before) pieces_.back().ends_unit = true;
  }
  step_ = at::zeros({}, at::kFloat);
}

void AdamW::add_pieces(Unit& unit, FlatParameters& flat, const Streaming& streaming) {
  const std::string of = " moments of unit '" + unit.name() + "'";
  moments_.push_back(std::make_unique<Moments>(
      Moments{flat.make_state("the first" + of), flat.make_state("the second" + of)}));
  const int64_t all = flat.optimizer_range().count(), step = StoredTensor::kRangeStep;
  const int64_t most =
      moments_.back()->first->in_memory() ? all : std::max<int64_t>(1, streaming.elements / step) * step;
  for (int64_t first = 0; first < all; first += most)
    pieces_.push_back({&unit, &flat, moments_.back().get(), first, std::min(most, all - first), false});
}

void AdamW::check(const std::vector<AdamWOptions>& groups) const {
  for (const Piece& piece : pieces_) {
    core::check_value(piece.flat->has_gradient(),
                      "[zero] a step needs the gradient of every unit; got none for unit '",
                      piece.unit->name(), "'; call finish_gradients first");
    for (const auto& spec : piece.flat->layout().specs())
      core::check_value(spec.group < groups.size(), "[zero] every parameter's group needs its numbers; got ",
                        groups.size(), " groups and group ", spec.group, " for parameter '", spec.name, "'");
  }
}

void AdamW::step(const std::vector<AdamWOptions>& groups, double gradient_scale) {
  check(groups);
  ++steps_;
  step_.fill_(double(steps_));  // the fused operator reads the step, and leaves counting to its caller
  std::deque<Incoming> incoming;
  size_t next = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const auto here = pieces_[i].unit->group().position().enter("unit '" + pieces_[i].unit->name() + "'");
    while (next < pieces_.size() && next <= i + size_t(ahead_)) incoming.push_back(start(pieces_[next++]));
    update(pieces_[i], std::move(incoming.front()), groups, gradient_scale);
    incoming.pop_front();
    if (!pieces_[i].ends_unit) continue;
    pieces_[i].unit->clear_gradients();
    pieces_[i].unit->publish();
  }
}

AdamW::Incoming AdamW::start(const Piece& piece) const {
  return {piece.flat->gradient().read(piece.first, piece.count),
          piece.flat->read_master(piece.first, piece.count),
          piece.moments->first->read(piece.first, piece.count),
          piece.moments->second->read(piece.first, piece.count)};
}

void AdamW::update(const Piece& piece, Incoming incoming, const std::vector<AdamWOptions>& groups,
                   double gradient_scale) {
  Tensor gradient = incoming.gradient.wait(), master = incoming.master.wait(), first = incoming.first.wait(),
         second = incoming.second.wait();
  const auto begin_of_update = std::chrono::steady_clock::now();
  if (step_.device() != master.device()) step_ = step_.to(master.device());
  if (gradient_scale != 1) gradient.mul_(gradient_scale);
  const int64_t begin = piece.flat->optimizer_range().begin + piece.first;
  for (const auto& [range, group] : piece.flat->layout().group_pieces({begin, begin + piece.count})) {
    const auto part = [&, from = range.begin - begin, count = range.count()](const Tensor& flat) {
      return flat.narrow(0, from, count);
    };
    const AdamWOptions& o = groups[group];
    at::_fused_adamw_({part(master)}, {part(gradient)}, {part(first)}, {part(second)},
                      /*max_exp_avg_sqs=*/{}, {step_}, o.learning_rate, o.beta1, o.beta2, o.weight_decay,
                      o.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
  if (timeline_)
    timeline_->add("compute", "update of " + piece.unit->name(),
                   {begin_of_update, std::chrono::steady_clock::now()});
  piece.flat->gradient().give_back(std::move(gradient));
  piece.flat->write_back_master(piece.first, std::move(master));
  piece.moments->first->write_back(piece.first, std::move(first));
  piece.moments->second->write_back(piece.first, std::move(second));
}

double gradient_norm(const std::vector<Unit*>& units, const comm::Group& world) {
  Tensor square = at::zeros({}, at::TensorOptions(at::kDouble).device(units.at(0)->options().device));
  bool partitioned = false;
  for (const Unit* unit : units)
    for (const auto& flat : unit->flats()) {
      if (!flat->is_trainable()) continue;
      square.add_(flat->gradient_square().to(square.device()));
      partitioned = unit->options().partitions_optimizer();
    }
  if (partitioned) world.all_reduce(square, "the gradient norm");
  return square.sqrt_().item<double>();
}

double clipping_factor(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

}  // namespace trireme::zero
