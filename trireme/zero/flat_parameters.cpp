#include "trireme/zero/flat_parameters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "trireme/core/check.h"
#include "trireme/core/checksum.h"
#include "trireme/zero/storage.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using core::Residence;

// Runs right after autograd has accumulated a parameter's gradient.
class CollectGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  CollectGradient(FlatParameters& owner, size_t index) : owner_(owner), index_(index) {}
  void operator()(const Tensor& parameter) override {
    Tensor gradient = std::move(parameter.mutable_grad());
    parameter.mutable_grad().reset();
    owner_.collect(index_, gradient);
  }

 private:
  FlatParameters& owner_;
  size_t index_;
};

Tensor part(const Tensor& flat, const Range& range) { return flat.narrow(0, range.begin, range.count()); }

// Zeroes what no gradient has filled: padding, and parameters that were not used.
void fill_gaps(const Tensor& flat, const FlatLayout& layout, const std::vector<bool>& filled) {
  int64_t place = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    const Range range = layout.parameter(i);
    if (!filled[i]) continue;
    flat.narrow(0, place, range.begin - place).zero_();
    place = range.end;
  }
  flat.narrow(0, place, layout.padded() - place).zero_();
}

// Calls visit(values, common) for what of `range` of the flat buffer is among `held`, which `tensor` holds.
template <class Visit>
void visit_common(const Range& range, const Tensor& tensor, const Range& held, const Visit& visit) {
  const Range common = intersection(range, held);
  if (common.count() > 0) visit(part(tensor, {common.begin - held.begin, common.end - held.begin}), common);
}

// In fp64 over sums of a few thousand: fp32 alone loses a tenth of the sum over 10^8 elements and more.
Tensor sum_of_squares(const Tensor& values) {
  constexpr int64_t kRow = 4096;
  const int64_t whole = values.numel() / kRow * kRow;
  const auto squares = [](const Tensor& rows) {
    return at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}).to(at::kDouble).square_().sum();
  };
  Tensor sum = squares(values.narrow(0, whole, values.numel() - whole).view({1, -1}));
  if (whole > 0) sum.add_(squares(values.narrow(0, 0, whole).view({-1, kRow})));
  return sum;
}

at::ScalarType narrower(at::ScalarType a, at::ScalarType b) {
  return c10::elementSize(a) < c10::elementSize(b) ? a : b;
}

}  // namespace

FlatParameters::FlatParameters(std::string unit, std::vector<ParameterSpec> specs, const FlatKind& kind,
                               const Options& options, comm::Group group, const Memory& memory)
    : unit_(std::move(unit)),
      layout_(std::move(specs), group.size()),
      kind_(kind),
      options_(options),
      stored_dtype_(c10::promoteTypes(kind.dtype, options.stored_dtype.value_or(kind.dtype))),
      gather_dtype_(narrower(options.gather_dtype.value_or(kind.dtype), kind.dtype)),
      group_(std::move(group)),
      pool_(memory.pool),
      optimizer_disk_(options.optimizer_on == Residence::disk ? memory.optimizer_disk : nullptr),
      adopted_(layout_.size()),
      collected_(layout_.size(), false) {
  core::check_value((options.optimizer_on != Residence::disk || memory.optimizer_disk) &&
                        (options.parameters_on != Residence::disk || memory.parameter_disk),
                    "[zero] what is kept on a disk needs one; got none for unit '", unit_,
                    "'; give it in Memory");
  make_values(memory);
  make_parameters();
}

// Graphs may outlive the unit: what they hold of it must not call back.
FlatParameters::~FlatParameters() {
  for (const auto& parameter : parameters_)
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  if (reading_) reading_->wait();  // into a buffer that goes now
}

at::Device FlatParameters::optimizer_device() const {
  return options_.optimizer_on == Residence::device ? options_.device : at::Device(at::kCPU);
}

// Are the values what the optimizer updates? Where they are of the masters' dtype, and in their place.
bool FlatParameters::is_own_master() const {
  if (stored_dtype() != master_dtype()) return false;
  const Residence values = is_partitioned() ? options_.parameters_on : Residence::device;
  const auto on_disk = [](Residence residence) { return residence == Residence::disk; };
  if (on_disk(values) || on_disk(options_.optimizer_on)) return values == options_.optimizer_on;
  return options_.device.is_cpu() || values == options_.optimizer_on;
}

void FlatParameters::make_values(const Memory& memory) {
  const auto zeros = [](int64_t count, at::ScalarType dtype, at::Device device) {
    return at::zeros({count}, at::TensorOptions(dtype).device(device));
  };
  if (!is_partitioned()) {
    flat_ = zeros(layout_.padded(), kind_.dtype, options_.device);
    shard_ = std::make_shared<core::StoredTensor>(part(flat_, own_range()));
  } else if (options_.parameters_on == Residence::disk) {
    shard_ = std::make_shared<core::StoredTensor>(layout_.shard_size(), stored_dtype(), memory.parameter_disk,
                                                  "unit '" + unit_ + "'");
  } else {
    const auto device = options_.parameters_on == Residence::host ? at::Device(at::kCPU) : options_.device;
    shard_ = std::make_shared<core::StoredTensor>(zeros(layout_.shard_size(), stored_dtype(), device));
  }
  if (!is_trainable()) return;
  if (!is_own_master())
    master_ = make_state("the masters of unit '" + unit_ + "'");
  else
    master_ = options_.partitions_optimizer() ? shard_ : std::make_shared<core::StoredTensor>(flat_);
  if (!reuses_collected()) gradient_ = make_state("the gradients of unit '" + unit_ + "'");
}

// Under stage 1 the reduced gradient takes the place of the whole one, unit by unit.
bool FlatParameters::reuses_collected() const {
  return accumulates_whole() && options_.partitions_optimizer() && !optimizer_disk_;
}

core::StoredTensor& FlatParameters::gradient() {
  core::check_internal(gradient_ != nullptr, "[zero] unit '", unit_, "' has no gradient yet");
  return *gradient_;
}

void FlatParameters::make_parameters() {
  for (size_t i = 0; i < layout_.size(); ++i) {
    Tensor tensor =
        tensor_without_memory(layout_.specs()[i].shape, kind_.dtype, options_.device, partitioned_message(i));
    if (is_trainable()) {
      tensor.requires_grad_(true);
      torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<CollectGradient>(*this, i));
    }
    parameters_.push_back(std::move(tensor));
    if (!is_partitioned()) lend_memory(parameters_[i], flat_, layout_.parameter(i).begin);
  }
}

std::unique_ptr<core::StoredTensor> FlatParameters::make_state(const std::string& what) const {
  const int64_t count = optimizer_range().count();
  if (optimizer_disk_)
    return std::make_unique<core::StoredTensor>(count, master_dtype(), optimizer_disk_, what);
  return std::make_unique<core::StoredTensor>(
      at::zeros({count}, at::TensorOptions(master_dtype()).device(optimizer_device())));
}

std::string FlatParameters::partitioned_message(size_t index) const {
  return core::concatenate(
      "[zero] parameter '", layout_.specs()[index].name, "' is partitioned over ", group_.size(),
      " ranks and its values are not here; got a use of them while unit '", unit_,
      "' is not gathered; use it inside the unit's forward or backward pass, or gather it first");
}

Range FlatParameters::optimizer_range() const {
  return options_.partitions_optimizer() ? own_range() : Range{0, layout_.padded()};
}

Range FlatParameters::stored(size_t index) const {
  const Range all = layout_.parameter(index);
  const Range mine = is_partitioned() ? intersection(all, own_range()) : all;
  return mine.count() == 0 ? Range{} : Range{mine.begin - all.begin, mine.end - all.begin};
}

// --- values

FlatParameters::Edit& FlatParameters::edit() {
  if (!edit_) {
    edit_ = Edit{.shard = is_partitioned() ? shard_->read().wait() : flat_, .master = {}};
    if (master_ && !is_own_master()) edit_->master = master_->read().wait();
  }
  return *edit_;
}

void FlatParameters::write(size_t index, int64_t first, const Tensor& values) {
  const Range all = layout_.parameter(index);
  const Range written{all.begin + first, all.begin + first + values.numel()};
  core::check_value(first >= 0 && written.end <= all.end, "[zero] values must lie inside parameter '",
                    layout_.specs()[index].name, "' of ", all.count(), " elements; got ", values.numel(),
                    " from ", first);
  const Tensor source = values.detach().reshape({-1});
  const auto copy = [&](const Tensor& stored, const Range& common) {
    stored.copy_(part(source, {common.begin - written.begin, common.end - written.begin}));
  };
  visit_common(written, edit().shard, is_partitioned() ? own_range() : Range{0, layout_.padded()}, copy);
  if (edit().master.defined()) visit_common(written, edit().master, optimizer_range(), copy);
}

uint64_t FlatParameters::value_checksum(size_t index) const {
  const Tensor values = parameters_[index].detach().to(at::kCPU);
  return core::checksum({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
}

void FlatParameters::adopt_gathered(size_t index) {
  const Range all = layout_.parameter(index);
  const Tensor values = parameters_[index].detach().view({-1});
  const auto adopt = [&](const Tensor& stored, const Range& common) {
    const Tensor written =
        part(values, {common.begin - all.begin, common.end - all.begin}).to(stored.device());
    const Tensor changed = stored.to(gather_dtype_).to(kind_.dtype).ne(written);
    stored.copy_(at::where(changed, written.to(stored.scalar_type()), stored));
  };
  if (edit().master.defined()) visit_common(all, edit().master, optimizer_range(), adopt);
  if (is_partitioned()) visit_common(all, edit().shard, own_range(), adopt);
  adopted_[index] = value_checksum(index);
}

void FlatParameters::start_read() {
  if (!reading_ && !shard_->in_memory()) reading_ = shard_->read();
}

void FlatParameters::drop_read() {
  if (!reading_) return;
  shard_->give_back(reading_->wait());
  reading_.reset();
}

// [n] in the stored dtype, and when it travelled.
Tensor FlatParameters::wait_for_shard(core::Interval& interval) {
  if (shard_->in_memory()) return shard_->in_place();
  start_read();
  borrowed_.push_back(reading_->wait());
  interval = reading_->interval();
  reading_.reset();
  return borrowed_.back();
}

// The values in `dtype` on the device: themselves, where they are so already.
Tensor FlatParameters::lent(const Tensor& values, at::ScalarType dtype) {
  if (values.scalar_type() == dtype && values.device() == options_.device) return values;
  borrowed_.push_back(pool_->take(values.numel(), dtype, options_.device));
  return borrowed_.back().copy_(values, /*non_blocking=*/true);
}

void FlatParameters::start_gather() {
  if (group_.size() == 1) return start_read();
  core::Interval read;
  const Tensor mine = lent(wait_for_shard(read), gather_dtype_);
  borrowed_.push_back(pool_->take(layout_.padded(), gather_dtype_, options_.device));
  pending_gather_ = group_.all_gather_into_async(borrowed_.back(), mine, "gather of unit '" + unit_ + "'");
}

core::Interval FlatParameters::wait_gathered() {
  core::Interval interval;
  Tensor arrived;
  if (pending_gather_) {
    arrived = pending_gather_->wait();
    interval = pending_gather_->interval();
    pending_gather_.reset();
  } else {
    arrived = lent(wait_for_shard(interval), gather_dtype_);  // rounds as it would with more ranks
  }
  flat_ = lent(arrived, kind_.dtype);
  std::erase_if(borrowed_, [&](Tensor& buffer) {
    if (buffer.is_alias_of(flat_)) return false;
    pool_->give_back(buffer);
    return true;
  });
  for (size_t i = 0; i < layout_.size(); ++i) lend_memory(parameters_[i], flat_, layout_.parameter(i).begin);
  return interval;
}

void FlatParameters::release() {
  for (size_t i = 0; i < layout_.size(); ++i) drop_memory(parameters_[i], partitioned_message(i));
  for (auto& buffer : borrowed_) pool_->give_back(std::move(buffer));  // the flat one, unless it is the shard
  borrowed_.clear();
  flat_.reset();
}

void FlatParameters::publish() {
  if (edit_) {
    if (is_partitioned()) shard_->write_back(0, edit_->shard);
    if (edit_->master.defined()) master_->write_back(0, edit_->master);
    edit_.reset();
  }
  if (!is_partitioned() && is_trainable() && options_.partitions_optimizer())
    group_.all_gather_into(flat_, shard_->in_place(), "the updated values of unit '" + unit_ + "'");
}

// --- gradients

void FlatParameters::collect(size_t index, const Tensor& gradient) {
  core::check_internal(gradient.sizes() == parameters_[index].sizes(), "[zero] the gradient of parameter '",
                       layout_.specs()[index].name, "' must have its shape; got ", gradient.sizes(), " for ",
                       parameters_[index].sizes());
  Tensor place = part(collecting(), layout_.parameter(index)).view(gradient.sizes());
  collected_[index] ? place.add_(gradient) : place.copy_(gradient);
  collected_[index] = true;
}

// Whole gradients wait in the masters' dtype and from pass to pass; partitioned ones only until the
// reduction.
Tensor& FlatParameters::collecting() {
  if (collecting_.defined()) return collecting_;
  if (!accumulates_whole())
    collecting_ = pool_->take(layout_.padded(), kind_.dtype, options_.device);
  else if (!options_.partitions_optimizer() && gradient_->in_memory())
    collecting_ = gradient_->in_place();
  else
    collecting_ = at::empty({layout_.padded()}, at::TensorOptions(master_dtype()).device(options_.device));
  return collecting_;
}

// Hands over what was collected, zeros where nothing was.
Tensor FlatParameters::take_collected() {
  fill_gaps(collecting(), layout_, collected_);
  collected_.assign(layout_.size(), false);
  return std::exchange(collecting_, {});
}

void FlatParameters::start_reduction() {
  if (!is_trainable() || accumulates_whole()) return;
  finish_reduction();
  reducing_ = take_collected();
  const auto sum_dtype = c10::promoteTypes(kind_.dtype, options_.reduction_dtype);
  pending_reduction_ =
      group_.reduce_scatter_async(reducing_, sum_dtype, "the gradient of unit '" + unit_ + "'");
}

std::optional<core::Interval> FlatParameters::finish_reduction() {
  if (!pending_reduction_) return {};
  const Tensor mine = pending_reduction_->wait();
  const auto interval = pending_reduction_->interval();
  pending_reduction_.reset();
  add_gradient(mine);
  pool_->give_back(std::exchange(reducing_, {}));
  return interval;
}

// `mine`: of `optimizer_range()`, reduced; may be changed.
void FlatParameters::add_gradient(const Tensor& mine) {
  if (options_.reduction == GradientReduction::mean && group_.size() > 1) mine.div_(double(group_.size()));
  Tensor sum = has_sum_ ? gradient_->read().wait() : gradient_->blank(0, mine.numel());
  if (has_sum_)
    sum.add_(mine.to(sum.device()));
  else if (!sum.is_alias_of(mine))
    sum.copy_(mine);
  has_sum_ = true;
  if (gradient_->in_memory()) return;
  disk_square_ = sum_of_squares(sum);
  gradient_->write_back(0, std::move(sum));
}

void FlatParameters::finish_gradients() {
  if (!is_trainable()) return;
  finish_reduction();
  if (accumulates_whole()) {
    const std::string purpose = "the gradient of unit '" + unit_ + "'";
    Tensor whole = take_collected();
    Tensor mine = options_.partitions_optimizer() ? group_.reduce_scatter(whole, master_dtype(), purpose)
                                                  : group_.all_reduce(whole, purpose);
    if (reuses_collected()) gradient_ = std::make_unique<core::StoredTensor>(mine.to(optimizer_device()));
    add_gradient(mine);
  } else if (!has_sum_) {
    gradient_->clear();
    disk_square_ = at::zeros({}, at::kDouble);
  }
  finished_ = true;
}

void FlatParameters::clear_gradients() {
  has_sum_ = false;
  finished_ = false;
  if (reuses_collected()) gradient_.reset();
}

Tensor FlatParameters::gradient_square() const {
  return gradient_->in_memory() ? sum_of_squares(gradient_->in_place()) : disk_square_;
}

// --- the optimizer's side

core::Reading FlatParameters::read_master(int64_t first, int64_t count) {
  return master_->read(first, count);
}

void FlatParameters::write_back_master(int64_t first, Tensor values) {
  if (!is_own_master()) {
    if (options_.partitions_optimizer())
      shard_->write(first, values);
    else
      flat_.narrow(0, first, values.numel()).copy_(values);
  }
  master_->write_back(first, std::move(values));
}

}  // namespace trireme::zero
