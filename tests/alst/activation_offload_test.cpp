#include "trireme/alst/activation_offload.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/errors.h"
#include "trireme/alst/checkpoint.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

// Takes any tensor, tells what is asked of it, and lets go of nothing before it is told to.
class Recorder final : public OffloadTarget {
 public:
  std::vector<std::string> events;

  bool accepts(const Tensor& tensor) const override { return tensor.scalar_type() != at::kBool; }
  std::unique_ptr<OffloadedTensor> move_away(const Tensor& tensor) override {
    auto copy = std::make_unique<Copy>(*this, tensor, names_++);
    events.push_back("away " + copy->name);
    return copy;
  }
  void begin_returning() override { events.emplace_back("begin returning"); }

 private:
  struct Copy final : OffloadedTensor {
    Copy(Recorder& r, const Tensor& tensor, int n)
        : owner(r), name(std::to_string(n)), values(tensor.clone()), source(tensor) {}
    ~Copy() override { owner.events.push_back("drop " + name); }
    void finish_leaving() override {
      if (source.defined()) owner.events.push_back("left " + name);
      source = Tensor();
    }
    bool has_left() override { return !source.defined(); }
    void start_return() override {
      if (!starting) owner.events.push_back("return " + name);
      starting = true;
    }
    Tensor take_back() override {
      start_return();
      starting = false;
      owner.events.push_back("back " + name);
      return values.clone();
    }
    Recorder& owner;
    std::string name;
    Tensor values, source;
    bool starting = false;
  };
  int names_ = 0;
};

Tensor numbers(double first, int64_t count = 300) {
  return at::arange(count, at::kDouble).add_(first).sin_();
}

TEST(ActivationOffload, LeavesInOrderAndComesBackAheadOfItsUse) {
  const auto target = std::make_shared<Recorder>();
  ActivationOffload offload({.leaving_at_once = 2, .keep_last = 1}, target);
  std::vector<std::shared_ptr<KeptTensors>> kept;
  for (int i = 0; i < 5; ++i) kept.push_back(offload.keep({numbers(i)}, {}));
  // The last one stays; of those that leave two may be on their way.
  EXPECT_EQ(target->events,
            (std::vector<std::string>{"away 0", "away 1", "away 2", "left 0", "away 3", "left 1"}));
  target->events.clear();
  EXPECT_TRUE(at::equal(kept[4]->get()[0], numbers(4)));
  EXPECT_EQ(target->events, (std::vector<std::string>{"left 2", "left 3", "begin returning", "return 3"}));
  target->events.clear();
  kept[4].reset();
  EXPECT_TRUE(at::equal(kept[3]->get()[0], numbers(3)));
  EXPECT_EQ(target->events, (std::vector<std::string>{"return 2", "back 3"}));
  target->events.clear();
  kept[3].reset();
  EXPECT_EQ(target->events, (std::vector<std::string>{"drop 3"}));
  EXPECT_EQ(offload.bytes_away(), 4 * 300 * 8);
  EXPECT_EQ(offload.bytes_back(), 300 * 8);
}

TEST(ActivationOffload, OnlyWhatTheSettingsNameLeaves) {
  const auto target = std::make_shared<Recorder>();
  const Tensor small = numbers(1, 127), large = numbers(2, 128), mask = large.gt(0).repeat({100});
  const auto leaving = [&](const ActivationOffloadOptions& options) {
    ActivationOffload offload(options, target);
    auto kept = offload.keep({small, large, mask}, {large + 1});
    const auto back = kept->get();
    EXPECT_EQ(back.size(), 4u);
    EXPECT_TRUE(back[0].is_same(small));  // was never gone
    EXPECT_TRUE(back[2].is_same(mask));   // the target does not take it
    EXPECT_TRUE(at::equal(back[1], large));
    EXPECT_TRUE(at::equal(back[3], large + 1));
    return offload.bytes_away();
  };
  EXPECT_EQ(leaving({.min_bytes = 1024, .keep_last = 0}), 2 * 1024);
  EXPECT_EQ(leaving({.what = OffloadedTensors::inputs, .min_bytes = 1024, .keep_last = 0}), 1024);
  EXPECT_EQ(leaving({.min_bytes = 1025, .keep_last = 0}), 0);
  EXPECT_EQ(leaving({.min_bytes = 1024, .keep_last = 1}), 0);
}

// A square matrix and its transpose are of one memory, dtype and shape, and yet two tensors.
TEST(ActivationOffload, ATensorLeavesOnceAndItsViewsForThemselves) {
  const auto target = std::make_shared<Recorder>();
  ActivationOffload offload({.min_bytes = 0, .keep_last = 0}, target);
  const Tensor x = numbers(1, 16).view({4, 4});
  auto first = offload.keep({x, x.t(), x.narrow(0, 1, 2), x.select(1, 1)}, {x});
  auto second = offload.keep({x, x.view({16})}, {});
  EXPECT_EQ(offload.bytes_away(), 8 * (16 + 16 + 8 + 4 + 16));
  const auto a = first->get(), b = second->get();
  EXPECT_TRUE(at::equal(a[0], x));
  EXPECT_TRUE(at::equal(a[1], x.t()));
  EXPECT_TRUE(at::equal(a[2], x.narrow(0, 1, 2)));
  EXPECT_TRUE(at::equal(a[3], x.select(1, 1)));
  EXPECT_TRUE(at::equal(a[4], x));
  EXPECT_TRUE(at::equal(b[0], x));
  EXPECT_TRUE(at::equal(b[1], x.view({16})));
  // Changed, it is another tensor, also where it lies where it lay.
  const Tensor before = x.clone();
  x.add_(1);
  auto third = offload.keep({x}, {});
  EXPECT_TRUE(at::equal(third->get()[0], x));
  EXPECT_TRUE(at::equal(first->get()[0], before));
}

TEST(ActivationOffload, MemoryThatIsReusedIsNotTakenForTheSameTensor) {
  const auto target = std::make_shared<Recorder>();
  ActivationOffload offload({.min_bytes = 0, .keep_last = 0}, target);
  std::vector<std::shared_ptr<KeptTensors>> kept;
  for (int i = 0; i < 20; ++i) kept.push_back(offload.keep({numbers(i, 4096)}, {}));  // freed at once
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(at::equal(kept[size_t(i)]->get()[0], numbers(i, 4096)));
}

TEST(ActivationOffload, RefusesWhatWasChangedInPlace) {
  const auto target = std::make_shared<Recorder>();
  ActivationOffload offload({.min_bytes = 0, .keep_last = 1}, target);
  Tensor early = numbers(1), late = numbers(2);
  auto first = offload.keep({early}, {});
  early.add_(1);
  EXPECT_THROW(offload.keep({late}, {}), core::ValueError);  // the first one leaves now
  auto stays = offload.keep({late}, {});
  late.add_(1);
  EXPECT_THROW(stays->get(), core::ValueError);
}

TEST(ActivationOffload, ServesCheckpointsAsMemoryWould) {
  const auto target = std::make_shared<Recorder>();
  const auto run = [&](const std::shared_ptr<Keeper>& keeper, bool twice) {
    at::manual_seed(4);
    Tensor x = numbers(0).requires_grad_(true), w = numbers(1).requires_grad_(true), frozen = numbers(2);
    Tensor y = x;
    for (int layer = 0; layer < 5; ++layer) {
      const Region region = [&, layer](const std::vector<Tensor>& in, Kept& kept) -> std::vector<Tensor> {
        if (!kept.replaying) kept.tensors = {in[0].detach().exp(), at::tensor({layer})};
        EXPECT_EQ(kept.tensors.at(1).item<int>(), layer);
        return {at::dropout((in[0] * w + in[1]).tanh(), 0.3, true) * kept.tensors.at(0).cos()};
      };
      y = checkpoint(region, {y, frozen}, keeper)[0];
    }
    Tensor loss = y.square().sum();
    torch::autograd::backward({loss}, {}, /*retain_graph=*/twice);
    if (twice) torch::autograd::backward({loss});
    EXPECT_ANY_THROW(torch::autograd::backward({loss}));
    return std::vector<Tensor>{y.detach(), x.grad(), w.grad()};
  };
  for (bool twice : {false, true}) {
    const auto plain = run(nullptr, twice);
    for (int64_t keep_last : {0, 1, 3, 9}) {
      const auto offload = std::make_shared<ActivationOffload>(
          ActivationOffloadOptions{.min_bytes = 0, .keep_last = keep_last}, target);
      const auto moved = run(offload, twice);
      for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], moved[i])) << keep_last;
      // `frozen` leaves once: all five keep it.
      const int64_t left = std::max<int64_t>(0, 5 - keep_last);
      EXPECT_EQ(offload->bytes_away(), left > 0 ? left * (2 * 300 * 8 + 4) + 300 * 8 : 0);
    }
    // Nothing stays behind.
    int64_t there = 0;
    for (const auto& event : target->events) there += event.starts_with("away") - event.starts_with("drop");
    EXPECT_EQ(there, 0);
  }
}

TEST(ActivationOffload, TensorsGoAsTheBackwardPassGoesOn) {
  const auto target = std::make_shared<Recorder>();
  const auto offload =
      std::make_shared<ActivationOffload>(ActivationOffloadOptions{.min_bytes = 0, .keep_last = 0}, target);
  Tensor y = numbers(0).requires_grad_(true);
  const Region region = [](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    return {in[0].sin()};
  };
  for (int layer = 0; layer < 3; ++layer) y = checkpoint(region, {y}, offload)[0];
  Tensor loss = y.sum();
  target->events.clear();
  torch::autograd::backward({loss});
  // The graph is still here, and what it kept is not.
  EXPECT_EQ(target->events,
            (std::vector<std::string>{"left 1", "left 2", "begin returning", "return 2", "return 1", "back 2",
                                      "drop 2", "return 0", "back 1", "drop 1", "back 0", "drop 0"}));
}

TEST(ActivationOffload, WhatItKeptMayOutliveIt) {
  const auto target = std::make_shared<Recorder>();
  std::shared_ptr<KeptTensors> kept;
  {
    ActivationOffload offload({.min_bytes = 0, .keep_last = 0}, target);
    kept = offload.keep({numbers(1)}, {});
  }
  EXPECT_TRUE(at::equal(kept->get()[0], numbers(1)));
}

// Takes everything; leaving fails for the tensor of that number.
class Failing final : public OffloadTarget {
 public:
  explicit Failing(int number) : left_(number) {}
  bool accepts(const Tensor&) const override { return true; }
  std::unique_ptr<OffloadedTensor> move_away(const Tensor& tensor) override {
    return std::make_unique<Copy>(tensor, left_-- == 0);
  }

 private:
  struct Copy final : OffloadedTensor {
    Copy(const Tensor& tensor, bool f) : values(tensor.clone()), fails(f) {}
    void finish_leaving() override { core::check_value(!fails, "the disk is full"); }
    bool has_left() override { return false; }
    void start_return() override {}
    Tensor take_back() override { return values; }
    Tensor values;
    bool fails;
  };
  int left_;
};

TEST(ActivationOffload, AfterAFailureTheNextPassRuns) {
  ActivationOffload offload({.leaving_at_once = 0, .keep_last = 0}, std::make_shared<Failing>(1));
  const auto pass = [&] {
    std::vector<std::shared_ptr<KeptTensors>> kept;
    for (int i = 0; i < 3; ++i) kept.push_back(offload.keep({numbers(i)}, {}));
    for (int i = 2; i >= 0; --i) EXPECT_TRUE(at::equal(kept[size_t(i)]->get()[0], numbers(i)));
  };
  EXPECT_THROW(pass(), core::ValueError);
  pass();
}

TEST(ActivationOffload, NestedCheckpointsComeBackOnce) {
  const auto target = std::make_shared<Recorder>();
  const auto offload =
      std::make_shared<ActivationOffload>(ActivationOffloadOptions{.min_bytes = 0, .keep_last = 0}, target);
  const Region inner = [](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    return {in[0].sin()};
  };
  const Region outer = [&](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    return checkpoint(inner, in, offload);
  };
  Tensor y = numbers(0).requires_grad_(true);
  for (int layer = 0; layer < 3; ++layer) y = checkpoint(outer, {y}, offload)[0];
  torch::autograd::backward({y.sum()});
  const auto count = [&](std::string_view what) {
    return std::count_if(target->events.begin(), target->events.end(),
                         [&](const auto& event) { return event.starts_with(what); });
  };
  EXPECT_EQ(count("away"), 6);
  EXPECT_EQ(count("return"), 6);
  EXPECT_EQ(count("drop"), 6);
}

TEST(ActivationOffload, AnOutputThatIsKeptGoesWithTheGraph) {
  const auto offload =
      std::make_shared<ActivationOffload>(ActivationOffloadOptions{}, std::make_shared<Recorder>());
  Tensor x = numbers(0).requires_grad_(true);
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(x.storage().getWeakStorageImpl());
  const Region region = [](const std::vector<Tensor>& in, Kept& kept) -> std::vector<Tensor> {
    Tensor y = in[0].sin();
    if (!kept.replaying) kept.tensors = {y};
    return {y};
  };
  checkpoint(region, {x}, offload);  // nobody calls backward
  x = Tensor();
  EXPECT_TRUE(memory.expired());
}

}  // namespace
}  // namespace trireme::alst
