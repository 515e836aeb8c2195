#include "trireme/alst/activation_offload.h"

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

// A tensor that left, shared by all who keep it.
class Moved {
 public:
  Moved(const Tensor& source, uint32_t version, std::unique_ptr<OffloadedTensor> offloaded)
      : memory_(source.storage().getWeakStorageImpl()),
        version_(version),
        offset_(source.storage_offset()),
        sizes_(source.sizes().vec()),
        strides_(source.strides().vec()),
        dtype_(source.scalar_type()),
        bytes_(int64_t(source.nbytes())),
        offloaded_(std::move(offloaded)) {}

  // The weak reference keeps another tensor's storage from getting this address.
  bool is_of(const Tensor& tensor, uint32_t version) const {
    const auto memory = memory_.lock();
    return memory && memory.get() == tensor.storage().unsafeGetStorageImpl() && version_ == version &&
           offset_ == tensor.storage_offset() && sizes_ == tensor.sizes() && strides_ == tensor.strides() &&
           dtype_ == tensor.scalar_type();
  }
  int64_t bytes() const { return bytes_; }
  OffloadedTensor& offloaded() { return *offloaded_; }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> memory_;
  uint32_t version_;
  int64_t offset_;
  std::vector<int64_t> sizes_, strides_;
  at::ScalarType dtype_;
  int64_t bytes_;
  std::unique_ptr<OffloadedTensor> offloaded_;
};

// One tensor of a checkpoint: here, or away.
struct Slot {
  Tensor tensor;
  uint32_t version = 0;
  bool may_leave = false;
  std::shared_ptr<Moved> moved;
};

uint32_t version_of(const Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

void check_unchanged(const Slot& slot) {
  core::check_value(
      version_of(slot.tensor) == slot.version,
      "[alst] what a checkpoint keeps must not be changed in place before its backward pass; got "
      "a tensor of version ",
      version_of(slot.tensor), " that was kept as version ", slot.version, "; change a copy instead");
}

}  // namespace

class ActivationOffload::State : public std::enable_shared_from_this<State> {
 public:
  State(const ActivationOffloadOptions& options, std::shared_ptr<OffloadTarget> target)
      : options_(options), target_(std::move(target)) {}

  std::shared_ptr<KeptTensors> keep(const std::vector<Tensor>& inputs, const std::vector<Tensor>& computed);

  int64_t away = 0, back = 0;  // bytes

 private:
  class Checkpoint;

  Slot slot(const Tensor& tensor, bool is_input) const {
    const bool wanted = is_input || options_.what == OffloadedTensors::all;
    return {tensor, version_of(tensor),
            wanted && int64_t(tensor.nbytes()) >= options_.min_bytes && target_->accepts(tensor), nullptr};
  }

  std::shared_ptr<Moved> move_away(const Slot& slot) {
    std::erase_if(known_, [](const auto& moved) { return moved.expired(); });
    for (const auto& known : known_)
      if (auto moved = known.lock(); moved->is_of(slot.tensor, slot.version)) return moved;
    check_unchanged(slot);
    auto moved = std::make_shared<Moved>(slot.tensor, slot.version, target_->move_away(slot.tensor));
    known_.push_back(moved);
    away += moved->bytes();
    return moved;
  }

  void wait_for_leaving(int64_t allowed) {
    const auto has_left = [](const Leaving& checkpoint) {
      return std::all_of(checkpoint.begin(), checkpoint.end(),
                         [](const auto& moved) { return moved->offloaded().has_left(); });
    };
    while (!leaving_.empty() && (int64_t(leaving_.size()) > allowed || has_left(leaving_.front()))) {
      const Leaving oldest = std::move(leaving_.front());
      leaving_.pop_front();  // first: what fails once must not fail every later pass
      for (const auto& moved : oldest) moved->offloaded().finish_leaving();
    }
  }

  void begin_returning() {
    if (returning_) return;
    returning_ = true;
    wait_for_leaving(0);
    target_->begin_returning();
  }

  using Leaving = std::vector<std::shared_ptr<Moved>>;
  ActivationOffloadOptions options_;
  std::shared_ptr<OffloadTarget> target_;
  std::deque<Leaving> leaving_;                       // oldest first
  std::vector<std::weak_ptr<Moved>> known_;           // of what is away
  std::map<int64_t, std::weak_ptr<Checkpoint>> all_;  // in the order of the forward pass
  std::deque<std::weak_ptr<Checkpoint>> newest_;      // that stay for now
  int64_t next_ = 0;
  bool returning_ = false;
};

class ActivationOffload::State::Checkpoint final : public KeptTensors {
 public:
  Checkpoint(std::shared_ptr<State> state, int64_t index, std::vector<Slot> slots)
      : state_(std::move(state)), index_(index), slots_(std::move(slots)) {}
  ~Checkpoint() override { state_->all_.erase(index_); }

  void leave() {
    Leaving leaving;
    for (Slot& slot : slots_) {
      if (!slot.may_leave || slot.moved) continue;
      slot.moved = state_->move_away(slot);
      slot.tensor = Tensor();
      leaving.push_back(slot.moved);
    }
    if (!leaving.empty()) state_->leaving_.push_back(std::move(leaving));
    state_->wait_for_leaving(state_->options_.leaving_at_once);
  }

  void start_return() {
    for (const Slot& slot : slots_)
      if (slot.moved) slot.moved->offloaded().start_return();
  }

  std::vector<Tensor> get() override {
    state_->begin_returning();
    start_return();
    if (const auto me = state_->all_.find(index_); me != state_->all_.begin())
      if (const auto earlier = std::prev(me)->second.lock(); earlier && !earlier->was_taken_)
        earlier->start_return();
    was_taken_ = true;
    std::vector<Tensor> tensors;
    for (const Slot& slot : slots_) {
      if (!slot.moved) check_unchanged(slot);
      tensors.push_back(slot.moved ? take_back(*slot.moved) : slot.tensor);
    }
    return tensors;
  }

 private:
  Tensor take_back(Moved& moved) {
    state_->back += moved.bytes();
    return moved.offloaded().take_back();
  }

  std::shared_ptr<State> state_;
  int64_t index_;
  std::vector<Slot> slots_;
  bool was_taken_ = false;  // an outer checkpoint is, when the inner ones' turn comes
};

std::shared_ptr<KeptTensors> ActivationOffload::State::keep(const std::vector<Tensor>& inputs,
                                                            const std::vector<Tensor>& computed) {
  std::vector<Slot> slots;
  for (const auto& tensor : inputs) slots.push_back(slot(tensor, /*is_input=*/true));
  for (const auto& tensor : computed) slots.push_back(slot(tensor, /*is_input=*/false));
  const auto checkpoint = std::make_shared<Checkpoint>(shared_from_this(), next_, std::move(slots));
  all_[next_++] = checkpoint;
  returning_ = false;
  newest_.push_back(checkpoint);
  while (int64_t(newest_.size()) > options_.keep_last) {
    const auto oldest = newest_.front().lock();
    newest_.pop_front();
    if (oldest) oldest->leave();
  }
  return checkpoint;
}

ActivationOffload::ActivationOffload(const ActivationOffloadOptions& options,
                                     std::shared_ptr<OffloadTarget> target)
    : state_(std::make_shared<State>(options, std::move(target))) {}

ActivationOffload::~ActivationOffload() = default;

std::shared_ptr<KeptTensors> ActivationOffload::keep(const std::vector<Tensor>& inputs,
                                                     const std::vector<Tensor>& computed) {
  return state_->keep(inputs, computed);
}

int64_t ActivationOffload::bytes_away() const { return state_->away; }
int64_t ActivationOffload::bytes_back() const { return state_->back; }

}  // namespace trireme::alst
