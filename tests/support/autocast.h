// bf16 autocast on the CPU, for as long as it lives.
#pragma once

#include <ATen/autocast_mode.h>

namespace trireme::tests {

class Autocast {
 public:
  Autocast() {
    at::autocast::increment_nesting();
    set(true);
  }
  ~Autocast() {
    set(false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  static void set(bool enabled) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
  }
};

}  // namespace trireme::tests
