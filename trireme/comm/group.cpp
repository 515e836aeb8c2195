#include "trireme/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <numeric>

#include "trireme/comm/watch.h"
#include "trireme/core/check.h"

namespace trireme::comm {
using at::Tensor;
using core::check_value;

struct Group::State {
  std::string name = "self";
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;  // null: a group of one
  int64_t rank = 0, size = 1;
  Traffic traffic;
  std::shared_ptr<const Watch> watch;
  bool checks_order = false;
};

namespace {

// Moving data needs no arithmetic: as bytes, any dtype works on any backend.
Tensor as_bytes(const Tensor& contiguous) { return contiguous.view({-1}).view(at::kByte); }

// Bytes of one row of `tensor`, which has `rows` of them; 0 where there is none.
int64_t row_bytes(const Tensor& tensor, int64_t rows) {
  return rows == 0 ? 0 : int64_t(tensor.nbytes()) / rows;
}

std::vector<int64_t> scaled(at::IntArrayRef counts, int64_t factor) {
  std::vector<int64_t> result(counts.begin(), counts.end());
  for (auto& count : result) count *= factor;
  return result;
}

int64_t total(at::IntArrayRef counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// What arrived in a dense copy of `tensor` goes into the tensor itself.
Pending::Finish write_back_to(const Tensor& tensor) {
  return [tensor](const Tensor& arrived) {
    if (!arrived.is_alias_of(tensor)) tensor.detach().copy_(arrived);
    return tensor;
  };
}

// How many ranks `virtual_rank` sends to in a binomial tree of `size` ranks.
int64_t binomial_children(int64_t virtual_rank, int64_t size) {
  int64_t children = 0;
  for (int64_t step = 1; step < size; step *= 2)
    children += step > virtual_rank && virtual_rank + step < size;
  return children;
}

}  // namespace

Group::Group() : state_(std::make_shared<State>()) {
  state_->watch = std::make_shared<Watch>(Watch::Options{});
}

Group::Group(std::string name, c10::intrusive_ptr<c10d::ProcessGroup> process_group,
             std::shared_ptr<const Watch> watch, bool checks_order)
    : state_(std::make_shared<State>()) {
  state_->name = std::move(name);
  state_->checks_order = checks_order;
  state_->rank = process_group->getRank();
  state_->size = process_group->getSize();
  state_->watch =
      watch
          ? std::move(watch)
          : std::make_shared<Watch>(Watch::Options{.store = {}, .rank = state_->rank, .size = state_->size});
  if (state_->size > 1) state_->process_group = std::move(process_group);
}

int64_t Group::rank() const { return state_->rank; }
int64_t Group::size() const { return state_->size; }
const std::string& Group::name() const { return state_->name; }
const Traffic& Group::traffic() const { return state_->traffic; }
const Position& Group::position() const { return state_->watch->position(); }

void Group::check_order(Collective collective, std::string_view purpose) const {
  if (!state_->checks_order) return;
  constexpr int64_t kLongest = 256;
  const std::string mine = core::concatenate(name_of(collective), " for ", purpose).substr(0, kLongest);
  Tensor text = at::zeros({1, kLongest}, at::kByte), all = at::empty({size(), kLongest}, at::kByte);
  std::copy(mine.begin(), mine.end(), text.mutable_data_ptr<uint8_t>());
  Pending(state_->process_group->all_gather_single(all, text), text, all,
          context(Collective::all_gather, "the order of collectives"))
      .wait();
  const auto of_rank = [&](int64_t rank) {
    const auto* begin = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + rank * kLongest;
    return std::string(begin, std::find(begin, begin + kLongest, '\0'));
  };
  for (int64_t rank = 1; rank < size(); ++rank)
    if (of_rank(rank) != of_rank(0))
      throw core::CommunicationError(core::concatenate(
          "[comm] the ranks of group '", name(), "' must make the same collectives in the same order; got ",
          of_rank(0), " on its rank 0 and ", of_rank(rank), " on its rank ", rank,
          "; see that every rank runs the same layers forward and backward in the same order"));
}

Pending::Context Group::context(Collective collective, std::string_view purpose) const {
  return {.description = core::concatenate(name_of(collective), " of group '", name(), "' for ", purpose),
          .traffic = {state_, &state_->traffic},
          .watch = state_->watch};
}

Pending Group::move_bytes(const Tensor& input, const Tensor& output, at::IntArrayRef sent,
                          at::IntArrayRef received, Collective collective, std::string_view purpose) const {
  Tensor input_bytes = as_bytes(input), output_bytes = as_bytes(output);
  auto sent_bytes = scaled(sent, row_bytes(input, total(sent)));
  auto received_bytes = scaled(received, row_bytes(output, total(received)));
  check_order(collective, purpose);
  state_->traffic.add(collective, total(sent_bytes) - sent_bytes[size_t(rank())]);
  auto work = state_->process_group->all_to_all_single(output_bytes, input_bytes, received_bytes, sent_bytes);
  return {std::move(work), input, output, context(collective, purpose)};
}

Pending Group::all_to_all_async(const Tensor& input, at::IntArrayRef sent, at::IntArrayRef received,
                                std::string_view purpose) const {
  const auto rows = total(sent);
  check_value(int64_t(sent.size()) == size() && int64_t(received.size()) == size(),
              "[comm] all_to_all needs one count per rank for sending and for receiving; got ", sent.size(),
              " and ", received.size(), " in a group of ", size());
  check_value(input.dim() > 0 && input.size(0) == rows,
              "[comm] all_to_all sends every row of its input; got input ", input.sizes(), " and ", rows,
              " rows to send");
  if (size() == 1) return Pending(input);
  auto shape = input.sizes().vec();
  shape[0] = total(received);
  const Tensor whole = input.detach().contiguous();
  return move_bytes(whole, at::empty(shape, whole.options()), sent, received, Collective::all_to_all,
                    purpose);
}

Pending Group::all_to_all_async(const Tensor& parts, std::string_view purpose) const {
  check_value(parts.dim() > 0 && parts.size(0) == size(),
              "[comm] all_to_all needs one part per rank; got input ", parts.sizes(), " in a group of ",
              size());
  const std::vector<int64_t> ones(size_t(size()), 1);
  return all_to_all_async(parts, ones, ones, purpose);
}

Tensor Group::all_to_all(const Tensor& parts, std::string_view purpose) const {
  return all_to_all_async(parts, purpose).wait();
}

Tensor Group::all_to_all(const Tensor& input, at::IntArrayRef sent, at::IntArrayRef received,
                         std::string_view purpose) const {
  return all_to_all_async(input, sent, received, purpose).wait();
}

Pending Group::all_gather_into_async(const Tensor& whole, const Tensor& part,
                                     std::string_view purpose) const {
  check_value(whole.is_contiguous() && whole.scalar_type() == part.scalar_type() &&
                  whole.numel() == part.numel() * size(),
              "[comm] all_gather fills a contiguous tensor of size() parts; got part ", part.sizes(),
              ", whole ", whole.sizes(), " in a group of ", size());
  Tensor target = whole.detach(), mine = part.detach().contiguous();
  if (size() == 1) {
    if (target.const_data_ptr() != mine.const_data_ptr()) target.view({-1}).copy_(mine.view({-1}));
    return Pending(whole);
  }
  check_order(Collective::all_gather, purpose);
  state_->traffic.add(Collective::all_gather, int64_t(mine.nbytes()) * (size() - 1));
  Tensor target_bytes = as_bytes(target), mine_bytes = as_bytes(mine);
  auto work = state_->process_group->all_gather_single(target_bytes, mine_bytes);
  return {std::move(work), mine, whole, context(Collective::all_gather, purpose)};
}

Tensor Group::all_gather_into(const Tensor& whole, const Tensor& part, std::string_view purpose) const {
  return all_gather_into_async(whole, part, purpose).wait();
}

Tensor Group::all_gather(const Tensor& part, std::string_view purpose) const {
  auto shape = part.sizes().vec();
  shape.insert(shape.begin(), size());
  if (size() == 1) return part.detach().unsqueeze(0);
  return all_gather_into(at::empty(shape, part.options().requires_grad(false)), part, purpose);
}

Pending Group::reduce_scatter_async(const Tensor& whole, at::ScalarType sum_dtype,
                                    std::string_view purpose) const {
  check_value(whole.dim() == 1 && whole.numel() % size() == 0,
              "[comm] reduce_scatter needs a flat tensor that divides by the group; got ", whole.sizes(),
              " in a group of ", size(), "; pad it");
  Tensor mine = whole.detach();
  if (size() == 1) return Pending(mine.to(sum_dtype));
  if (!whole.is_cpu()) {  // NCCL reduces on the way
    check_order(Collective::reduce_scatter, purpose);
    mine = mine.to(sum_dtype).contiguous();
    Tensor part = at::empty({whole.numel() / size()}, mine.options());
    state_->traffic.add(Collective::reduce_scatter, int64_t(part.nbytes()) * (size() - 1));
    auto work = state_->process_group->reduce_scatter_single(part, mine);
    return {std::move(work), mine, part, context(Collective::reduce_scatter, purpose)};
  }
  // gloo's own sends as much as an all-reduce and adds up in the tensor's dtype.
  if (c10::elementSize(sum_dtype) < c10::elementSize(mine.scalar_type())) mine = mine.to(sum_dtype);
  mine = mine.contiguous();
  const std::vector<int64_t> ones(size_t(size()), 1);
  Pending moved = move_bytes(mine, at::empty_like(mine), ones, ones, Collective::reduce_scatter, purpose);
  const int64_t ranks = size();
  return std::move(moved).then([ranks, sum_dtype](const Tensor& received) {
    return received.view({ranks, -1}).sum(0, /*keepdim=*/false, sum_dtype);
  });
}

Tensor Group::reduce_scatter(const Tensor& whole, at::ScalarType sum_dtype, std::string_view purpose) const {
  return reduce_scatter_async(whole, sum_dtype, purpose).wait();
}

Pending Group::all_reduce_async(const Tensor& tensor, std::string_view purpose, Reduction reduction) const {
  if (size() == 1) return Pending(tensor);
  Tensor contiguous = tensor.detach().contiguous();
  check_order(Collective::all_reduce, purpose);
  state_->traffic.add(Collective::all_reduce, 2 * int64_t(contiguous.nbytes()) * (size() - 1) / size());
  c10d::AllreduceOptions options;
  options.reduceOp = reduction == Reduction::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
  std::vector<Tensor> tensors{contiguous};
  auto work = state_->process_group->allreduce(tensors, options);
  return {std::move(work), contiguous, contiguous, context(Collective::all_reduce, purpose),
          write_back_to(tensor)};
}

Tensor Group::all_reduce(const Tensor& tensor, std::string_view purpose, Reduction reduction) const {
  return all_reduce_async(tensor, purpose, reduction).wait();
}

Pending Group::broadcast_async(const Tensor& tensor, int64_t root, std::string_view purpose) const {
  check_value(root >= 0 && root < size(), "[comm] broadcast needs a root inside the group; got ", root,
              " in a group of ", size());
  if (size() == 1) return Pending(tensor);
  Tensor contiguous = tensor.detach().contiguous();
  check_order(Collective::broadcast, purpose);
  const int64_t from_root = (rank() - root + size()) % size();
  state_->traffic.add(Collective::broadcast,
                      int64_t(contiguous.nbytes()) * binomial_children(from_root, size()));
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<Tensor> tensors{as_bytes(contiguous)};
  auto work = state_->process_group->broadcast(tensors, options);
  return {std::move(work), contiguous, contiguous, context(Collective::broadcast, purpose),
          write_back_to(tensor)};
}

Tensor Group::broadcast(const Tensor& tensor, int64_t root, std::string_view purpose) const {
  return broadcast_async(tensor, root, purpose).wait();
}

void Group::barrier(std::string_view purpose) const {
  if (size() == 1) return;
  check_order(Collective::barrier, purpose);
  Pending(state_->process_group->barrier(), {}, {}, context(Collective::barrier, purpose)).wait();
}

}  // namespace trireme::comm
