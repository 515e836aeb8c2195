#include "trireme/zero/trace.h"

#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

std::string changed(size_t place, const std::string& expected, const std::string& came) {
  return core::concatenate("[zero] the order of units changed: use ", place, " of a pass was expected to be ",
                           expected, "; got ", came, "; nothing is gathered ahead until a pass went by");
}

std::string quoted(const Unit& unit) { return "unit '" + unit.name() + "'"; }

}  // namespace

std::string Trace::visit(Unit& unit) {
  if (following_ && place_ < uses_.size() && uses_[place_] == &unit) {
    ++place_;
    return {};
  }
  std::string fault;
  if (following_) {
    fault =
        changed(place_ + 1, place_ < uses_.size() ? quoted(*uses_[place_]) : "the pass's end", quoted(unit));
    uses_.resize(place_);
    following_ = false;
  }
  uses_.push_back(&unit);
  ++place_;
  return fault;
}

std::string Trace::end_pass() {
  std::string fault;
  if (following_ && place_ > 0 && place_ < uses_.size()) {
    fault = changed(place_ + 1, quoted(*uses_[place_]), "the pass's end");
    uses_.resize(place_);
  }
  if (place_ > 0) following_ = true;
  place_ = 0;
  return fault;
}

std::span<Unit* const> Trace::upcoming() const {
  if (!following_) return {};
  return std::span(uses_).subspan(place_);
}

}  // namespace trireme::zero
