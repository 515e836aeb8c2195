// Parameters of one kind in one flat buffer, of which each rank owns an equal shard.
//   P ranks; N elements of the flat buffer, n = N / P of a shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/core/buffer_pool.h"
#include "trireme/core/stored_tensor.h"
#include "trireme/zero/flat_layout.h"
#include "trireme/zero/options.h"

namespace trireme::zero {

/// What parameters of one flat buffer have in common.
struct FlatKind {
  at::ScalarType dtype;
  bool trainable = true;
  bool partitioned = true;  ///< are values there only between gather and release?
  bool operator==(const FlatKind&) const = default;
};

/// The values, gradients and masters of a unit's parameters of one kind. Parameters keep their shape always;
/// of those that are partitioned, a use outside gather and release is an error that names the parameter.
/// Gradients are taken from parameters as soon as autograd has accumulated them.
///
/// Every rank makes the same calls that travel, in the same order. Who calls keeps to the unit's states: see
/// unit.h. Neither copied nor moved: parameters point here.
class FlatParameters {
 public:
  /// Values are zero. `unit` names it in errors.
  FlatParameters(std::string unit, std::vector<ParameterSpec> specs, const FlatKind& kind,
                 const Options& options, comm::Group group, const Memory& memory);
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  const std::string& unit() const { return unit_; }
  const FlatLayout& layout() const { return layout_; }
  const FlatKind& kind() const { return kind_; }
  const comm::Group& group() const { return group_; }
  bool is_partitioned() const { return kind_.partitioned; }
  bool is_trainable() const { return kind_.trainable; }

  /// Parameter `index`, in the order of the specs, of its spec's shape.
  const at::Tensor& parameter(size_t index) const { return parameters_[index]; }

  // Values.

  /// The elements of parameter `index`, counted from its own first, that this rank stores: all of them or its
  /// shard's.
  Range stored(size_t index) const;

  /// Sets elements [first, first + values.numel()) of parameter `index` where this rank stores them, shards
  /// and masters, which keep their full precision. `values` may be of any dtype and shape. What is on a disk
  /// is written there by `publish`.
  void write(size_t index, int64_t first, const at::Tensor& values);

  /// What the parameter holds now, while it is gathered.
  uint64_t value_checksum(size_t index) const;

  /// The gathered values of parameter `index`, which are the same on every rank, become what this rank
  /// stores: its shard, and its masters where an element is another than they round to. See `write`.
  void adopt_gathered(size_t index);
  /// `value_checksum` after the last `adopt_gathered`, if any.
  std::optional<uint64_t> adopted_checksum(size_t index) const { return adopted_[index]; }

  /// Starts bringing the shard from its disk; nothing where it is in memory, or under way.
  void start_read();
  /// Ends it, where the shard is not gathered after all.
  void drop_read();
  void start_gather();
  /// Returns when the values travelled.
  core::Interval wait_gathered();
  void release();

  // Gradients, of trainable parameters.

  /// Adds this rank's gradient of parameter `index` to those collected since the last reduction.
  void collect(size_t index, const at::Tensor& gradient);
  void start_reduction();
  std::optional<core::Interval> finish_reduction();
  bool reduction_is_done() const { return !pending_reduction_ || pending_reduction_->is_done(); }
  void finish_gradients();
  void clear_gradients();

  /// Is the gradient finished, and not yet cleared?
  bool has_gradient() const { return finished_; }

  /// The sum of the squares of the finished gradient's elements in `optimizer_range()`: [] in fp64.
  at::Tensor gradient_square() const;

  /// The reduced gradient of `optimizer_range()`, in fp32 or wider, between `finish_gradients` and
  /// `clear_gradients`. The optimizer may change it.
  core::StoredTensor& gradient();

  // The optimizer's side.

  /// fp32, or wider where the parameters are: of masters, moments and reduced gradients.
  at::ScalarType master_dtype() const { return c10::promoteTypes(kind_.dtype, at::kFloat); }

  /// The part of the flat buffer that this rank's optimizer updates: its shard, or all of it under stage 0.
  Range optimizer_range() const;

  /// A tensor like the master, of zeros, in the place that the options name for optimizer states.
  std::unique_ptr<core::StoredTensor> make_state(const std::string& what) const;

  /// Starts bringing elements from `first` on, counted from `optimizer_range()`'s first, of the master.
  core::Reading read_master(int64_t first, int64_t count);
  /// Takes back what `read_master` returned and the optimizer changed; the shard, where it is not its own
  /// master, follows.
  void write_back_master(int64_t first, at::Tensor values);

  /// Brings what was updated to the ranks that keep values whole, and to disks.
  void publish();

 private:
  // Values that are being written before a model's first use, until `publish`.
  struct Edit {
    at::Tensor shard, master;
  };

  bool accumulates_whole() const { return !options_.partitions_gradients(); }
  Range own_range() const { return layout_.shard(group_.rank()); }
  at::ScalarType stored_dtype() const { return is_partitioned() ? stored_dtype_ : kind_.dtype; }
  bool is_own_master() const;
  at::Device optimizer_device() const;
  void make_values(const Memory& memory);
  void make_parameters();
  Edit& edit();
  at::Tensor wait_for_shard(core::Interval& interval);
  at::Tensor lent(const at::Tensor& values, at::ScalarType dtype);
  at::Tensor& collecting();
  at::Tensor take_collected();
  void add_gradient(const at::Tensor& mine);
  bool reuses_collected() const;
  std::string partitioned_message(size_t index) const;

  std::string unit_;
  FlatLayout layout_;
  FlatKind kind_;
  Options options_;
  at::ScalarType stored_dtype_, gather_dtype_;
  comm::Group group_;
  std::shared_ptr<core::BufferPool> pool_;
  std::shared_ptr<core::DiskStore> optimizer_disk_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::optional<uint64_t>> adopted_;

  at::Tensor flat_;                            // [N] in the parameters' dtype: while gathered, or always
  std::shared_ptr<core::StoredTensor> shard_;  // [n] in the stored dtype; part of flat_ where not partitioned
  std::shared_ptr<core::StoredTensor> master_;  // [n] or [N]; the shard, or flat_, where dtypes agree
  std::optional<Edit> edit_;
  std::optional<core::Reading> reading_;  // of the shard
  std::vector<at::Tensor> borrowed_;      // from the pool, for the gather under way
  std::optional<comm::Pending> pending_gather_;

  at::Tensor collecting_;        // [N] gradients of this pass, or of all since the step
  std::vector<bool> collected_;  // is the parameter's part of it filled?
  at::Tensor reducing_;          // what it was, while it is reduced
  std::optional<comm::Pending> pending_reduction_;
  std::unique_ptr<core::StoredTensor> gradient_;
  bool has_sum_ = false;  // does gradient_ hold anything?
  bool finished_ = false;
  at::Tensor disk_square_;  // gradient_square() of what is on disk
};

}  // namespace trireme::zero
