// What operations depend on beside their inputs, so that they can be run again as they were.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trireme::alst {

/// Whether operations of this thread are cast to a lower precision: on the CPU and on one device.
class AutocastState {
 public:
  /// As it is now.
  explicit AutocastState(at::Device device);

  /// The same devices, with autocast off.
  AutocastState off() const;
  void apply() const;

 private:
  struct Type {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<Type> types_;
  bool caches_;
};

/// The states of the default random generators of the CPU and of one device.
class RandomState {
 public:
  /// As they are now.
  explicit RandomState(at::Device device);
  void apply() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// While it lives, autocast is off.
class AutocastOff {
 public:
  explicit AutocastOff(at::Device device) : present_(device) { present_.off().apply(); }
  ~AutocastOff() { present_.apply(); }
  AutocastOff(const AutocastOff&) = delete;
  AutocastOff& operator=(const AutocastOff&) = delete;

 private:
  AutocastState present_;
};

/// While it lives, autocast makes casts of parameters of its own. Those that it kept from outside belong to
/// another graph, and those made inside, without a graph or with one that ends here, must not be used
/// outside: a parameter would be left without its gradient.
class OwnCasts {
 public:
  OwnCasts();
  ~OwnCasts();
  OwnCasts(const OwnCasts&) = delete;
  OwnCasts& operator=(const OwnCasts&) = delete;
};

/// What operations on a device depend on, at one time.
class ReplayState {
 public:
  /// As it is now.
  explicit ReplayState(at::Device device) : device_(device), random_(device), autocast_(device) {}

 private:
  friend class Replay;
  at::Device device_;
  RandomState random_;
  AutocastState autocast_;
};

/// While it lives, operations run as they did at `state`; then as if they had not run. `state` goes on by the
/// random numbers that were drawn, so that what followed can be replayed next.
class Replay {
 public:
  explicit Replay(ReplayState& state);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  ReplayState& state_;
  ReplayState present_;
  OwnCasts casts_;
};

}  // namespace trireme::alst
