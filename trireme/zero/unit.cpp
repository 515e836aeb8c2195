#include "trireme/zero/unit.h"

#include <algorithm>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

at::ScalarType scalar_type(const ParameterSpec& spec, at::ScalarType otherwise) {
  if (!spec.dtype) return otherwise;
  switch (*spec.dtype) {
    case core::DType::f64:
      return at::kDouble;
    case core::DType::f32:
      return at::kFloat;
    case core::DType::bf16:
      return at::kBFloat16;
    case core::DType::f16:
      return at::kHalf;
    default:
      throw core::ValueError(core::concatenate("[zero] a parameter is of a floating-point type; got ",
                                               core::dtype_name(*spec.dtype), " for '", spec.name,
                                               "'; keep it as a buffer"));
  }
}

FlatKind kind_of(const ParameterSpec& spec, const Options& options) {
  return {.dtype = scalar_type(spec, options.dtype),
          .trainable = spec.trainable,
          .partitioned = options.partitions_parameters() && spec.numel() >= options.persistence_threshold};
}

// From the first to the last of both; of one alone where the other is nothing.
core::Interval joined(const core::Interval& a, const core::Interval& b) {
  if (a.end == core::Interval{}.end) return b;
  if (b.end == core::Interval{}.end) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace

std::string_view name_of(State state) {
  switch (state) {
    case State::not_available:
      return "not_available";
    case State::in_flight:
      return "in_flight";
    case State::available:
      return "available";
  }
  return "unknown";
}

Unit::Unit(std::string name, const std::vector<ParameterSpec>& specs, const Options& options,
           comm::Group group, const Memory& memory)
    : name_(std::move(name)), options_(options), group_(std::move(group)) {
  std::vector<FlatKind> kinds;
  std::vector<std::vector<ParameterSpec>> sorted;
  std::vector<std::pair<size_t, size_t>> places;  // which kind, which of it
  for (const auto& spec : specs) {
    const FlatKind kind = kind_of(spec, options);
    const auto which = size_t(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
    if (which == kinds.size()) {
      kinds.push_back(kind);
      sorted.emplace_back();
    }
    places.emplace_back(which, sorted[which].size());
    sorted[which].push_back(spec);
  }
  for (size_t i = 0; i < kinds.size(); ++i)
    flats_.push_back(
        std::make_unique<FlatParameters>(name_, std::move(sorted[i]), kinds[i], options, group_, memory));
  for (const auto& [which, index] : places) places_.push_back({flats_[which].get(), index});
  if (!is_partitioned()) state_ = State::available;
}

const ParameterSpec& Unit::spec(size_t index) const {
  return places_[index].flat->layout().specs()[places_[index].index];
}

int64_t Unit::numel() const {
  int64_t sum = 0;
  for (const auto& flat : flats_) sum += flat->layout().numel();
  return sum;
}

int64_t Unit::gathered_elements() const {
  int64_t sum = 0;
  for (const auto& flat : flats_) sum += flat->is_partitioned() ? flat->layout().padded() : 0;
  return sum;
}

int64_t Unit::gradient_elements() const {
  int64_t sum = 0;
  for (const auto& flat : flats_) sum += flat->is_trainable() ? flat->layout().padded() : 0;
  return sum;
}

const at::Tensor& Unit::parameter(size_t index) const {
  if (reader_) reader_->before_read(const_cast<Unit&>(*this));
  return places_[index].flat->parameter(places_[index].index);
}

void Unit::write(size_t index, int64_t first, const at::Tensor& values) {
  core::check_value(!is_partitioned() || state_ == State::not_available, "[zero] values of unit '", name_,
                    "' are written while it is not gathered; got state ", name_of(state_),
                    "; release it first");
  places_[index].flat->write(places_[index].index, first, values);
}

void Unit::publish() {
  ++generation_;
  for (const auto& flat : flats_) flat->publish();
}

std::string Unit::first_partitioned() const {
  for (const auto& flat : flats_)
    if (flat->is_partitioned()) return flat->layout().specs().front().name;
  return "none";
}

void Unit::check_move(State next, std::string_view action) const {
  static constexpr std::pair<State, State> allowed[] = {{State::not_available, State::in_flight},
                                                        {State::in_flight, State::available},
                                                        {State::available, State::not_available}};
  for (const auto& [from, to] : allowed)
    if (from == state_ && to == next) return;
  throw core::ValueError(core::concatenate(
      "[zero] unit '", name_, "' (first parameter '", first_partitioned(), "') cannot ", action,
      "; got state ", name_of(state_), "; gather a unit once, and release it once after its last use"));
}

void Unit::start_read() {
  for (const auto& flat : flats_)
    if (flat->is_partitioned()) flat->start_read();
}

void Unit::drop_read() {
  if (state_ != State::not_available) return;
  for (const auto& flat : flats_) flat->drop_read();
}

void Unit::start_gather() {
  if (!is_partitioned()) return;
  check_move(State::in_flight, "be gathered");
  state_ = State::in_flight;
  start_read();  // all, before the first is waited for
  for (const auto& flat : flats_)
    if (flat->is_partitioned()) flat->start_gather();
}

core::Interval Unit::wait_gathered() {
  core::Interval interval;
  if (!is_partitioned()) return interval;
  check_move(State::available, "end its gather");
  for (const auto& flat : flats_)
    if (flat->is_partitioned()) interval = joined(interval, flat->wait_gathered());
  state_ = State::available;
  return interval;
}

void Unit::release() {
  if (!is_partitioned()) return;
  check_move(State::not_available, "be released");
  core::check_value(uses_ == 0, "[zero] unit '", name_, "' (first parameter '", first_partitioned(),
                    "') cannot be released while it is in use; got ", uses_,
                    " forward or backward passes or scopes inside it; release it after the last of them");
  state_ = State::not_available;
  for (const auto& flat : flats_)
    if (flat->is_partitioned()) flat->release();
}

void Unit::end_use() {
  core::check_internal(uses_ > 0, "[zero] a use of unit '", name_, "' ends that did not begin");
  --uses_;
}

void Unit::start_reduction() {
  for (const auto& flat : flats_) flat->start_reduction();
}

std::optional<core::Interval> Unit::finish_reduction() {
  std::optional<core::Interval> all;
  for (const auto& flat : flats_)
    if (const auto interval = flat->finish_reduction()) all = all ? joined(*all, *interval) : *interval;
  return all;
}

bool Unit::reduction_is_done() const {
  return std::all_of(flats_.begin(), flats_.end(),
                     [](const auto& flat) { return flat->reduction_is_done(); });
}

void Unit::finish_gradients() {
  for (const auto& flat : flats_) flat->finish_gradients();
}

void Unit::clear_gradients() {
  for (const auto& flat : flats_) flat->clear_gradients();
}

Gathered::Gathered(Unit& unit) : unit_(unit) {
  if (unit_.state() == State::not_available) unit_.start_gather();
  if (unit_.state() == State::in_flight) unit_.wait_gathered();
  unit_.begin_use();
}

Gathered::~Gathered() {
  unit_.end_use();
  if (!unit_.is_used()) unit_.release();
}

}  // namespace trireme::zero
