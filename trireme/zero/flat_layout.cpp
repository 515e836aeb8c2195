#include "trireme/zero/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

constexpr int64_t kAlignment = 16;  // elements: 64 bytes of fp32, what vector loads like best

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

}  // namespace

int64_t ParameterSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Range intersection(const Range& a, const Range& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

FlatLayout::FlatLayout(std::vector<ParameterSpec> specs, int64_t ranks)
    : specs_(std::move(specs)), ranks_(ranks) {
  core::check_value(ranks > 0, "[zero] parameters are laid out for at least one rank; got ", ranks);
  int64_t place = 0;
  for (const auto& spec : specs_) {
    core::check_value(std::all_of(spec.shape.begin(), spec.shape.end(), [](int64_t n) { return n >= 0; }),
                      "[zero] a parameter's shape holds no negative size; got parameter '", spec.name, "'");
    const int64_t count = spec.numel();
    parameters_.push_back({place, place + count});
    numel_ += count;
    place = round_up(place + count, kAlignment);
  }
  // Never nothing at all: a collective of no elements is one that backends treat each in its own way.
  padded_ = specs_.empty() ? 0 : std::max(round_up(place, kAlignment * ranks), kAlignment * ranks);
}

std::vector<FlatLayout::GroupPiece> FlatLayout::group_pieces(const Range& range) const {
  std::vector<GroupPiece> pieces;
  for (size_t i = 0; i < size(); ++i) {
    const int64_t end = i + 1 < size() ? parameters_[i + 1].begin : padded_;
    const Range part = intersection({parameters_[i].begin, end}, range);
    if (part.count() == 0) continue;
    if (!pieces.empty() && pieces.back().group == specs_[i].group)
      pieces.back().range.end = part.end;
    else
      pieces.push_back({part, specs_[i].group});
  }
  return pieces;
}

}  // namespace trireme::zero
