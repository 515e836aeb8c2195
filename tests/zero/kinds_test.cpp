// Every kind of parameter that a unit may hold, through whole steps, against plain autograd and AdamW's
// formula; wherever its states are kept.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"
#include "support/files.h"
#include "support/ranks.h"
#include "support/units.h"
#include "trireme/core/check.h"
#include "trireme/zero/adamw.h"
#include "trireme/zero/coordinator.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using core::Residence;
using tests::run_ranks;
using tests::world_of;

constexpr int64_t kWidth = 6;

// layer 0: frozen. layer 1: matrix, bias of 3 elements used, nothing, unused. layer 2: shares layer 1's
// matrix and has an fp32 parameter beside the others'. Two optimizer groups.
std::vector<std::vector<ParameterSpec>> specs() {
  return {{{"0.w", {kWidth, kWidth}, 0, false}, {"0.b", {kWidth}, 1, false}},
          {{"1.w", {kWidth, kWidth}}, {"1.b", {3}, 1}, {"1.nothing", {0, 4}}, {"1.unused", {5, 2}}},
          {{"2.scale", {kWidth}, 1, true, core::DType::f32}, {"2.frozen", {kWidth}, 0, false}}};
}

Tensor first_value(size_t unit, size_t index) {
  const auto spec = specs()[unit][index];
  return (at::arange(spec.numel(), at::kDouble) + double(7 * unit + index)).sin().mul(0.5).view(spec.shape);
}

Tensor input_of(int64_t rank, int64_t step) {
  return (at::arange(2 * kWidth, at::kDouble) * double(rank + 1) + double(step)).cos().view({2, kWidth});
}

using Parameters = std::vector<std::vector<Tensor>>;

Tensor frozen_layer(const Tensor& x, const Parameters& p) {
  return at::tanh(at::matmul(x, p[0][0]) + p[0][1]);
}
Tensor middle_layer(const Tensor& x, const Parameters& p) {
  Tensor y = at::matmul(x, p[1][0]);
  return at::cat({y.narrow(1, 0, 3) + p[1][1], y.narrow(1, 3, 3)}, 1) + p[1][2].sum();
}
Tensor last_layer(const Tensor& x, const Parameters& p) {
  Tensor y = at::matmul(at::tanh(x), p[1][0]);
  return (y.to(p[2][0].scalar_type()) * p[2][0] + p[2][1].to(p[2][0].scalar_type())).to(x.scalar_type());
}

const std::vector<AdamWOptions> kGroups{{.learning_rate = 1e-2, .eps = 1e-4, .weight_decay = 0.2},
                                        {.learning_rate = 3e-2, .eps = 1e-4, .weight_decay = 0}};

// All parameters after each of three steps, by plain autograd and the formula.
std::vector<Parameters> reference(int64_t ranks) {
  Parameters p, m, v;
  for (size_t u = 0; u < 3; ++u) {
    p.emplace_back(), m.emplace_back(), v.emplace_back();
    for (size_t i = 0; i < specs()[u].size(); ++i) {
      p[u].push_back(first_value(u, i).requires_grad_(specs()[u][i].trainable));
      m[u].push_back(at::zeros_like(p[u][i]));
      v[u].push_back(at::zeros_like(p[u][i]));
    }
  }
  std::vector<Parameters> after;
  for (int64_t step = 1; step <= 3; ++step) {
    for (int64_t rank = 0; rank < ranks; ++rank)
      torch::autograd::backward(
          {last_layer(middle_layer(frozen_layer(input_of(rank, step), p), p), p).square().sum()});
    at::NoGradGuard no_graph;
    after.emplace_back();
    for (size_t u = 0; u < 3; ++u) {
      after.back().emplace_back();
      for (size_t i = 0; i < p[u].size(); ++i) {
        const auto& o = kGroups[specs()[u][i].group];
        if (specs()[u][i].trainable) {
          const Tensor g = p[u][i].grad().defined() ? p[u][i].grad() : at::zeros_like(p[u][i]);
          m[u][i] = m[u][i] * o.beta1 + g * (1 - o.beta1);
          v[u][i] = v[u][i] * o.beta2 + g * g * (1 - o.beta2);
          p[u][i].mul_(1 - o.learning_rate * o.weight_decay);
          p[u][i].sub_(o.learning_rate * (m[u][i] / (1 - std::pow(o.beta1, step))) /
                       ((v[u][i] / (1 - std::pow(o.beta2, step))).sqrt() + o.eps));
          p[u][i].mutable_grad().reset();
        }
        after.back()[u].push_back(p[u][i].detach().clone());
      }
    }
  }
  return after;
}

struct Setting {
  Stage stage = Stage::parameters;
  int64_t threshold = 0;
  Schedule schedule;
  Residence parameters_on = Residence::device, optimizer_on = Residence::device;
};

// What a rank holds of the model, and how it takes steps.
class Model {
 public:
  Model(const comm::Group& group, const Options& options, const Schedule& schedule, const Memory& memory)
      : coordinator_(schedule) {
    for (size_t u = 0; u < 3; ++u) {
      units_.push_back(
          std::make_unique<Unit>("layer." + std::to_string(u), specs()[u], options, group, memory));
      all_.push_back(units_.back().get());
      for (size_t i = 0; i < specs()[u].size(); ++i) units_[u]->write(i, 0, first_value(u, i));
      units_[u]->publish();
    }
    coordinator_.adopt(all_);
    optimizer_ = std::make_unique<AdamW>(all_, Streaming{.elements = 1, .ahead = 2});
  }

  void step(const Tensor& input) {
    const auto layer = [&](size_t unit, const Tensor& x,
                           Tensor (*function)(const Tensor&, const Parameters&)) {
      return coordinator_.around({all_[unit]}, BackwardNeeds::values, x,
                                 [&](const Tensor& in) { return function(in, parameters(unit)); });
    };
    Tensor y = layer(2, layer(1, layer(0, input, frozen_layer), middle_layer), last_layer);
    torch::autograd::backward({y.square().sum()});
    coordinator_.end_pass();
    for (Unit* unit : all_) unit->finish_gradients();
    norm_ = gradient_norm(all_, all_[0]->group());
    optimizer_->step(kGroups, 1);
  }

  Unit& unit(size_t index) { return *all_[index]; }
  Coordinator& coordinator() { return coordinator_; }
  double norm() const { return norm_; }

 private:
  // Those that `unit`'s function reads: the last layer reads one of the middle one's, without saying so.
  Parameters parameters(size_t unit) {
    Parameters p{std::vector<Tensor>(2), std::vector<Tensor>(4), std::vector<Tensor>(2)};
    for (size_t i = 0; i < p[unit].size(); ++i) p[unit][i] = all_[unit]->parameter(i);
    if (unit == 2) p[1][0] = all_[1]->parameter(0);
    return p;
  }

  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Unit*> all_;
  Coordinator coordinator_;
  std::unique_ptr<AdamW> optimizer_;
  double norm_ = 0;
};

class Kinds : public ::testing::Test {
 protected:
  Memory memory(const Setting& s) const {
    auto pool = std::make_shared<core::BufferPool>();
    const auto disk = [&](Residence where) {
      return where == Residence::disk
                 ? std::make_shared<core::DiskStore>(
                       core::DiskStoreOptions{.directory = directory_.path(), .write_behind_bytes = 1 << 20},
                       pool)
                 : nullptr;
    };
    return {pool, disk(s.parameters_on), disk(s.optimizer_on)};
  }
  static Options options(const Setting& s, at::ScalarType dtype) {
    return {.stage = s.stage,
            .dtype = dtype,
            .persistence_threshold = s.threshold,
            .parameters_on = s.parameters_on,
            .optimizer_on = s.optimizer_on};
  }
  testing::TemporaryDirectory directory_;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (int stage = 0; stage < 4; ++stage)
    for (int64_t threshold : {int64_t{0}, int64_t{20}, int64_t{1} << 40}) {
      if (stage < 3 && threshold > 0) continue;
      for (Residence parameters : {Residence::device, Residence::host, Residence::disk})
        for (Residence optimizer : {Residence::device, Residence::host, Residence::disk}) {
          if (stage < 3 && parameters != Residence::device) continue;
          if (stage < 1 && optimizer != Residence::device) continue;
          all.push_back({Stage(stage), threshold, {}, parameters, optimizer});
          all.push_back(all.back());
          all.back().schedule = {.prefetch_bucket_size = 0, .read_ahead_size = 0, .max_reuse_distance = 0};
        }
    }
  return all;
}

std::string describe(const Setting& s) {
  return core::concatenate("stage ", int(s.stage), ", threshold ", s.threshold, ", parameters on ",
                           int(s.parameters_on), ", optimizer on ", int(s.optimizer_on), ", ahead ",
                           s.schedule.prefetch_bucket_size);
}

TEST_F(Kinds, EveryParameterAfterThreeSteps) {
  for (int64_t ranks : {1, 2, 4}) {
    const auto expected = reference(ranks);
    for (const Setting& s : settings())
      run_ranks(ranks, [&](const comm::Connection& connection) {
        SCOPED_TRACE(core::concatenate(ranks, " ranks, ", describe(s)));
        Model model(world_of(connection), options(s, at::kDouble), s.schedule, memory(s));
        for (int64_t step = 0; step < 3; ++step) {
          model.step(input_of(connection.rank(), step + 1));
          EXPECT_EQ(model.coordinator().live_parameters(), 0);
          for (size_t u = 0; u < 3; ++u)
            for (size_t i = 0; i < specs()[u].size(); ++i) {
              const double tolerance = specs()[u][i].dtype ? 1e-6 : u == 2 ? 1e-12 : 1e-6;
              if (specs()[u][i].numel() == 0) continue;
              const Tensor value = tests::whole_value(model.unit(u), i);
              EXPECT_LT(tests::relative_difference(value, expected[size_t(step)][u][i]), tolerance)
                  << specs()[u][i].name << " after step " << step + 1;
              EXPECT_EQ(value.scalar_type(), specs()[u][i].dtype ? at::kFloat : at::kDouble);
            }
        }
      });
  }
}

// In bf16, bit for bit, whatever is offloaded, replicated or gathered ahead.
TEST_F(Kinds, AreBitEqualWhereverTheyAre) {
  for (int64_t ranks : {1, 2, 3}) {
    std::vector<Tensor> first;
    double first_norm = 0;
    for (const Setting& s : settings()) {
      if (s.stage != Stage::parameters) continue;
      run_ranks(ranks, [&](const comm::Connection& connection) {
        SCOPED_TRACE(core::concatenate(ranks, " ranks, ", describe(s)));
        Model model(world_of(connection), options(s, at::kBFloat16), s.schedule, memory(s));
        for (int64_t step = 0; step < 3; ++step)
          model.step(input_of(connection.rank(), step).to(at::kBFloat16));
        std::vector<Tensor> values;
        for (size_t u = 0; u < 3; ++u)
          for (size_t i = 0; i < specs()[u].size(); ++i)
            values.push_back(tests::whole_value(model.unit(u), i));
        if (connection.rank() > 0) return;
        // Norms of differently cut buffers round differently.
        const bool same_cut = s.threshold == 0;
        if (first.empty()) first = values, first_norm = model.norm();
        if (same_cut) {
          EXPECT_EQ(model.norm(), first_norm);
        }
        for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(values[i], first[i])) << i;
      });
    }
  }
}

TEST_F(Kinds, FrozenParametersHaveNoGradientAndNoState) {
  run_ranks(2, [&](const comm::Connection& connection) {
    const Setting s;
    Model model(world_of(connection), options(s, at::kFloat), s.schedule, memory(s));
    EXPECT_FALSE(model.unit(0).is_trainable());
    EXPECT_FALSE(model.unit(0).parameter(0).requires_grad());
    const auto& traffic = model.unit(0).group().traffic();
    const int64_t before = traffic.bytes(comm::Collective::reduce_scatter);
    model.step(input_of(connection.rank(), 0).to(at::kFloat));
    const int64_t trained = model.unit(1).gradient_elements() + model.unit(2).gradient_elements();
    EXPECT_EQ(traffic.bytes(comm::Collective::reduce_scatter) - before, trained * 4 / 2);
  });
}

// Of one element, of half a block and one, and of many pieces; buffers hold the least.
TEST_F(Kinds, SizesThatFitNoBuffer) {
  for (int64_t ranks : {1, 2})
    run_ranks(ranks, [&](const comm::Connection& connection) {
      const Setting s{.schedule = {.read_ahead_size = 1},
                      .parameters_on = Residence::disk,
                      .optimizer_on = Residence::disk};
      Unit unit("layer", {{"one", {1}}, {"some", {513}}, {"many", {1'000'000}}}, options(s, at::kFloat),
                world_of(connection), memory(s));
      AdamW optimizer({&unit}, {.elements = 1, .ahead = 0});
      for (int step = 0; step < 2; ++step) {
        for (size_t i = 0; i < unit.size(); ++i)
          unit.place(i).flat->collect(i, at::ones({unit.spec(i).numel()}));
        unit.start_reduction();
        unit.finish_gradients();
        EXPECT_NEAR(gradient_norm({&unit}, unit.group()), double(ranks) * std::sqrt(1'000'514.0), 1);
        optimizer.step(decayed_and_not({.learning_rate = 0.5, .weight_decay = 0}), 1);
      }
      for (size_t i = 0; i < unit.size(); ++i)  // AdamW moves by its rate where gradients do not change
        EXPECT_LT((tests::whole_value(unit, i) + 1).abs().max().item<double>(), 1e-5) << unit.spec(i).name;
    });
}

TEST_F(Kinds, ADiskMovesTheShardsAndTheStates) {
  run_ranks(2, [&](const comm::Connection& connection) {
    const Setting s{.schedule = {.prefetch_bucket_size = 0, .read_ahead_size = 0, .max_reuse_distance = 0},
                    .parameters_on = Residence::disk,
                    .optimizer_on = Residence::disk};
    const Memory disks = memory(s);
    std::vector<ParameterSpec> one{{"w", {64, 128}}};
    Unit unit("layer", one, options(s, at::kBFloat16), world_of(connection), disks);
    unit.write(0, 0, at::ones({64, 128}));
    unit.publish();
    AdamW optimizer({&unit}, {.elements = 1, .ahead = 0});
    Coordinator coordinator(s.schedule);
    disks.parameter_disk->finish_writes();
    disks.optimizer_disk->finish_writes();
    const int64_t n = unit.flats()[0]->layout().shard_size();
    EXPECT_EQ(disks.parameter_disk->bytes_written(), 2 * n);  // bf16
    EXPECT_EQ(disks.optimizer_disk->bytes_written(), 4 * n);  // masters
    for (int64_t step = 1; step <= 3; ++step) {
      Tensor y = coordinator.around({&unit}, BackwardNeeds::values, at::ones({1, 64}, at::kBFloat16),
                                    [&](const Tensor& x) { return at::matmul(x, unit.parameter(0)); });
      torch::autograd::backward({y.sum()});
      coordinator.end_pass();
      unit.finish_gradients();
      optimizer.step(decayed_and_not({}), 1);
      disks.parameter_disk->finish_writes();
      disks.optimizer_disk->finish_writes();
      // Read for forward and backward, written after the step.
      EXPECT_EQ(disks.parameter_disk->bytes_read(), step * 2 * 2 * n);
      EXPECT_EQ(disks.parameter_disk->bytes_written(), (step + 1) * 2 * n);
      // Gradient, master and moments come and go; moments that were never written do not come, gradients go
      // before they come, and only then.
      EXPECT_EQ(disks.optimizer_disk->bytes_read(), (step * 4 - 2) * 4 * n);
      EXPECT_EQ(disks.optimizer_disk->bytes_written(), (step * 4 + 1) * 4 * n);
    }
  });
}

}  // namespace
}  // namespace trireme::zero
