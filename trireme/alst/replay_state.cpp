#include "trireme/alst/replay_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <mutex>

namespace trireme::alst {

namespace autocast = at::autocast;

AutocastState::AutocastState(at::Device device) : caches_(autocast::is_autocast_cache_enabled()) {
  const auto add = [this](at::DeviceType type) {
    if (autocast::is_autocast_available(type))
      types_.push_back({type, autocast::is_autocast_enabled(type), autocast::get_autocast_dtype(type)});
  };
  add(at::kCPU);
  if (!device.is_cpu()) add(device.type());
}

AutocastState AutocastState::off() const {
  AutocastState state = *this;
  for (auto& type : state.types_) type.enabled = false;
  return state;
}

void AutocastState::apply() const {
  for (const auto& [type, enabled, dtype] : types_) {
    autocast::set_autocast_enabled(type, enabled);
    autocast::set_autocast_dtype(type, dtype);
  }
  autocast::set_autocast_cache_enabled(caches_);
}

RandomState::RandomState(at::Device device) {
  const auto add = [this](at::Device of) {
    auto generator = at::globalContext().defaultGenerator(of);
    std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  };
  add(at::kCPU);
  if (!device.is_cpu()) add(device);
}

void RandomState::apply() const {
  for (const auto& [generator, state] : states_) {
    auto mine = generator;
    std::lock_guard lock(mine.mutex());
    mine.set_state(state);
  }
}

OwnCasts::OwnCasts() { autocast::clear_cache(); }

OwnCasts::~OwnCasts() { autocast::clear_cache(); }

Replay::Replay(ReplayState& state) : state_(state), present_(state.device_) {
  state_.random_.apply();
  state_.autocast_.apply();
}

Replay::~Replay() {
  state_.random_ = RandomState(state_.device_);
  present_.random_.apply();
  present_.autocast_.apply();
}

}  // namespace trireme::alst
