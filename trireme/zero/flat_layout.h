// Where the parameters of a unit lie in its flat buffer, and which part of it each rank owns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/dtype.h"

namespace trireme::zero {

struct ParameterSpec {
  std::string name;                  ///< unique among all parameters of a model
  std::vector<int64_t> shape;        ///< may hold zeros
  size_t group = 0;                  ///< of the optimizer's groups, the one whose numbers apply
  bool trainable = true;             ///< false: it has no gradient and no optimizer state
  std::optional<core::DType> dtype;  ///< where it differs from the other parameters'

  int64_t numel() const;
};

/// Elements [begin, end).
struct Range {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end > begin ? end - begin : 0; }
  bool operator==(const Range&) const = default;
};

Range intersection(const Range& a, const Range& b);

/// Parameters in the order given, each aligned, then padding up to equal shards, which are never empty where
/// there is a parameter. Padding belongs to no parameter.
class FlatLayout {
 public:
  FlatLayout(std::vector<ParameterSpec> specs, int64_t ranks);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  size_t size() const { return specs_.size(); }

  int64_t numel() const { return numel_; }    ///< of the parameters alone
  int64_t padded() const { return padded_; }  ///< of the flat buffer
  int64_t shard_size() const { return padded_ / ranks_; }
  Range shard(int64_t rank) const { return {rank * shard_size(), (rank + 1) * shard_size()}; }

  /// Parameter `index` in the flat buffer.
  Range parameter(size_t index) const { return parameters_[index]; }

  /// `range` of the flat buffer cut into pieces of one optimizer group each. Padding goes with its
  /// neighbour: its gradient is zero. Pieces begin at multiples of 16 elements, as `range` must.
  struct GroupPiece {
    Range range;
    size_t group;
  };
  std::vector<GroupPiece> group_pieces(const Range& range) const;

 private:
  std::vector<ParameterSpec> specs_;
  std::vector<Range> parameters_;
  int64_t ranks_, numel_ = 0, padded_ = 0;
};

}  // namespace trireme::zero
