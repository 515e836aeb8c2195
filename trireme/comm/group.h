// A group of ranks and the collectives among them.
//   P: the group's size. Row p of a tensor [P, ...] belongs to the group's rank p.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/pending.h"
#include "trireme/comm/position.h"
#include "trireme/comm/traffic.h"

namespace c10d {
class ProcessGroup;
}

namespace trireme::comm {

enum class Reduction { sum, max };

/// A handle that is cheap to copy; copies share the connection and the traffic counter.
///
/// Every rank of the group must make the same calls in the same order. `purpose` says what a collective is
/// for, such as "gather of unit 'layers.3'", and is part of every error. In a group of one, collectives
/// return their input and send nothing. Tensors that are not contiguous are copied first. Data moves as
/// bytes, so any dtype travels on any backend; reductions need a numeric one. Nothing here records a graph:
/// see collectives.h for the differentiable forms.
///
/// Errors: `core::ValueError` for shapes that break a rule; `core::CommunicationError` when the time limit
/// passes or another rank has ended, which says where all ranks are.
class Group {
 public:
  /// A group of one.
  Group();

  /// `name` is what errors and metrics call the group. Takes a share of `process_group`, and of `watch`,
  /// without which the error of a wait that fails tells of this rank alone. With `checks_order` the ranks
  /// tell each other of each collective before they begin it, and where these differ all throw
  /// `core::CommunicationError`, which names them: a tool for finding faults, since it costs a message each.
  Group(std::string name, c10::intrusive_ptr<c10d::ProcessGroup> process_group,
        std::shared_ptr<const Watch> watch = nullptr, bool checks_order = false);

  int64_t rank() const;
  int64_t size() const;
  const std::string& name() const;
  const Traffic& traffic() const;
  /// What this rank does, for the ranks that wait for it: the same for all groups of a connection.
  const Position& position() const;

  /// `parts` [P, ...]: row p goes to rank p. Returns [P, ...]: row p came from rank p. Its own inverse.
  at::Tensor all_to_all(const at::Tensor& parts, std::string_view purpose) const;
  Pending all_to_all_async(const at::Tensor& parts, std::string_view purpose) const;

  /// `input` [sum(sent), ...]: `sent[p]` rows go to rank p, in order. Returns [sum(received), ...]:
  /// `received[p]` rows from rank p, in order. `received` must be what the others send here.
  at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef sent, at::IntArrayRef received,
                        std::string_view purpose) const;
  Pending all_to_all_async(const at::Tensor& input, at::IntArrayRef sent, at::IntArrayRef received,
                           std::string_view purpose) const;

  /// `part` [...], of one shape on all ranks. Returns [P, ...].
  at::Tensor all_gather(const at::Tensor& part, std::string_view purpose) const;

  /// The same into `whole` [P * n], contiguous, from `part` [n]: memory that is reused costs no page faults.
  /// In a group of one `part` is copied unless it is `whole` already. Returns `whole`.
  at::Tensor all_gather_into(const at::Tensor& whole, const at::Tensor& part, std::string_view purpose) const;
  Pending all_gather_into_async(const at::Tensor& whole, const at::Tensor& part,
                                std::string_view purpose) const;

  /// `whole` [P * n]: returns this rank's [n] of the sum over the ranks, added up in `sum_dtype`, a new
  /// tensor unless the group is of one and the dtype agrees. Values travel in the narrower of the two dtypes
  /// where the backend is gloo, whose own reduce-scatter sends as much as an all-reduce: this one sends whole
  /// * (P - 1) / P.
  at::Tensor reduce_scatter(const at::Tensor& whole, at::ScalarType sum_dtype,
                            std::string_view purpose) const;
  Pending reduce_scatter_async(const at::Tensor& whole, at::ScalarType sum_dtype,
                               std::string_view purpose) const;

  /// Replaces `tensor` by the sum (or maximum) over the ranks, and returns it.
  at::Tensor all_reduce(const at::Tensor& tensor, std::string_view purpose,
                        Reduction reduction = Reduction::sum) const;
  Pending all_reduce_async(const at::Tensor& tensor, std::string_view purpose,
                           Reduction reduction = Reduction::sum) const;

  /// Replaces `tensor` on every rank by that of the group's rank `root`, and returns it.
  at::Tensor broadcast(const at::Tensor& tensor, int64_t root, std::string_view purpose) const;
  Pending broadcast_async(const at::Tensor& tensor, int64_t root, std::string_view purpose) const;

  /// Returns once every rank has come here.
  void barrier(std::string_view purpose) const;

 private:
  struct State;
  void check_order(Collective collective, std::string_view purpose) const;
  Pending::Context context(Collective collective, std::string_view purpose) const;
  Pending move_bytes(const at::Tensor& input, const at::Tensor& output, at::IntArrayRef sent,
                     at::IntArrayRef received, Collective collective, std::string_view purpose) const;

  std::shared_ptr<State> state_;
};

}  // namespace trireme::comm
