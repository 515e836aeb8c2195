#include "trireme/sp/head_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <optional>

#include "trireme/core/capsule.h"
#include "trireme/core/check.h"

namespace trireme::sp {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The flat buffer of an exchange, cut into one block per rank.
class Blocks {
 public:
  Blocks(Tensor flat, const std::vector<int64_t>& sizes) : flat_(std::move(flat)), sizes_(sizes) {}

  // Calls visit(rank, block) for each block in order, block being [B, tokens, heads, D].
  template <class Visit>
  void each(int64_t batch, const std::vector<int64_t>& tokens, const std::vector<int64_t>& heads,
            int64_t head_size, const Visit& visit) const {
    int64_t first = 0;
    for (size_t rank = 0; rank < sizes_.size(); ++rank) {
      visit(rank, flat_.narrow(0, first, sizes_[rank]).view({batch, tokens[rank], heads[rank], head_size}));
      first += sizes_[rank];
    }
  }

 private:
  Tensor flat_;
  const std::vector<int64_t>& sizes_;
};

bool overlap(const std::vector<HeadRange>& ranges, int64_t heads) {
  int64_t place = 0;
  for (const auto& range : ranges) {
    if (range.count > 0 && range.first != place) return true;
    place += range.count;
  }
  return place != heads;
}

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

HeadExchange::HeadExchange(comm::Group group, std::vector<std::vector<HeadRange>> ranges,
                           std::vector<int64_t> slice_lengths)
    : group_(std::move(group)),
      ranges_(std::move(ranges)),
      slice_lengths_(std::move(slice_lengths)),
      sequence_(sum(slice_lengths_)) {
  core::check_value(int64_t(slice_lengths_.size()) == group_.size(),
                    "[sp] an exchange needs one slice length per rank; got ", slice_lengths_.size(), " for ",
                    group_.size(), " ranks");
}

int64_t HeadExchange::head_of_part(size_t part, int64_t rank) const {
  return ranges_[part][size_t(rank)].count;
}

int64_t HeadExchange::heads_of(int64_t rank) const {
  int64_t heads = 0;
  for (size_t part = 0; part < ranges_.size(); ++part) heads += head_of_part(part, rank);
  return heads;
}

// Block p sent: my tokens of rank p's heads [B, s, heads of p, D]. Block p received: rank p's tokens of my
// heads.
std::vector<Tensor> HeadExchange::to_heads(const std::vector<Tensor>& slices,
                                           std::string_view purpose) const {
  if (group_.size() == 1) return slices;
  const auto P = size_t(group_.size());
  const int64_t B = slices[0].size(0), s = slices[0].size(1), D = slices[0].size(3),
                mine = heads_of(group_.rank());
  core::check_value(s == slice_lengths_[size_t(group_.rank())],
                    "[sp] a slice must have the agreed length; got ", s, " tokens on rank ", group_.rank(),
                    " for ", slice_lengths_[size_t(group_.rank())]);
  std::vector<int64_t> heads(P), sent(P), received(P);
  for (size_t p = 0; p < P; ++p) {
    heads[p] = heads_of(int64_t(p));
    sent[p] = B * s * heads[p] * D;
    received[p] = B * slice_lengths_[p] * mine * D;
  }
  Tensor send = at::empty({sum(sent)}, slices[0].options().requires_grad(false));
  Blocks(send, sent).each(B, std::vector<int64_t>(P, s), heads, D, [&](size_t p, const Tensor& block) {
    int64_t place = 0;
    for (size_t part = 0; part < slices.size(); ++part) {
      const auto [first, count] = ranges_[part][p];
      block.narrow(2, place, count).copy_(slices[part].narrow(2, first, count));
      place += count;
    }
  });
  Tensor arrived = group_.all_to_all(send, sent, received, purpose), whole;
  if (B == 1) {
    whole = arrived.view({1, sequence_, mine, D});
  } else {
    whole = at::empty({B, sequence_, mine, D}, send.options());
    int64_t token = 0;
    Blocks(arrived, received)
        .each(B, slice_lengths_, std::vector<int64_t>(P, mine), D, [&](size_t p, const Tensor& block) {
          whole.narrow(1, token, slice_lengths_[p]).copy_(block);
          token += slice_lengths_[p];
        });
  }
  std::vector<Tensor> parts;
  int64_t place = 0;
  for (size_t part = 0; part < slices.size(); ++part) {
    parts.push_back(whole.narrow(2, place, head_of_part(part, group_.rank())));
    place += parts.back().size(2);
  }
  return parts;
}

// Block p sent: rank p's tokens of my heads. Block p received: my tokens of rank p's heads.
std::vector<Tensor> HeadExchange::to_slices(const std::vector<Tensor>& parts,
                                            const std::vector<int64_t>& heads,
                                            std::string_view purpose) const {
  if (group_.size() == 1) return parts;
  const auto P = size_t(group_.size());
  const int64_t B = parts[0].size(0), D = parts[0].size(3), mine = heads_of(group_.rank());
  const int64_t s = slice_lengths_[size_t(group_.rank())];
  core::check_value(parts[0].size(1) == sequence_, "[sp] heads must have every token of the sequence; got ",
                    parts[0].size(1), " for ", sequence_);
  std::vector<int64_t> counts(P), sent(P), received(P);
  for (size_t p = 0; p < P; ++p) {
    counts[p] = heads_of(int64_t(p));
    sent[p] = B * slice_lengths_[p] * mine * D;
    received[p] = B * s * counts[p] * D;
  }
  const auto options = parts[0].options().requires_grad(false);
  Tensor send;
  if (B == 1 && parts.size() == 1 && parts[0].is_contiguous()) {
    send = parts[0].view({-1});
  } else {
    send = at::empty({sum(sent)}, options);
    int64_t token = 0;
    Blocks(send, sent)
        .each(B, slice_lengths_, std::vector<int64_t>(P, mine), D, [&](size_t p, const Tensor& block) {
          int64_t place = 0;
          for (const auto& part : parts) {
            block.narrow(2, place, part.size(2)).copy_(part.narrow(1, token, slice_lengths_[p]));
            place += part.size(2);
          }
          token += slice_lengths_[p];
        });
  }
  Tensor arrived = group_.all_to_all(send, sent, received, purpose);
  std::vector<Tensor> slices;
  std::vector<bool> adds;  // by part: do several ranks, or none, work on a head?
  for (size_t part = 0; part < parts.size(); ++part) {
    adds.push_back(overlap(ranges_[part], heads[part]));
    // Sums over ranks are formed in fp32 at least.
    slices.push_back(adds[part]
                         ? at::zeros({B, s, heads[part], D},
                                     options.dtype(at::promoteTypes(parts[part].scalar_type(), at::kFloat)))
                         : at::empty({B, s, heads[part], D}, options));
  }
  Blocks(arrived, received)
      .each(B, std::vector<int64_t>(P, s), counts, D, [&](size_t p, const Tensor& block) {
        int64_t place = 0;
        for (size_t part = 0; part < parts.size(); ++part) {
          const auto [first, count] = ranges_[part][p];
          Tensor target = slices[part].narrow(2, first, count), from = block.narrow(2, place, count);
          adds[part] ? target.add_(from) : target.copy_(from);
          place += count;
        }
      });
  for (size_t part = 0; part < parts.size(); ++part)
    slices[part] = slices[part].to(parts[part].scalar_type());
  return slices;
}

std::vector<int64_t> agree_slice_lengths(int64_t length, const comm::Group& group) {
  Tensor lengths = group.all_gather(at::scalar_tensor(length, at::kLong), "the lengths of the slices");
  return {lengths.data_ptr<int64_t>(), lengths.data_ptr<int64_t>() + group.size()};
}

namespace {

struct ExchangeToHeads : Function<ExchangeToHeads> {
  struct Saved {
    HeadExchange exchange;
    std::vector<int64_t> heads;
  };
  static variable_list forward(AutogradContext* ctx, const Tensor& query, const Tensor& key,
                               const Tensor& value, HeadExchange exchange) {
    ctx->saved_data["saved"] = core::to_capsule(Saved{exchange, {query.size(2), key.size(2), value.size(2)}});
    return exchange.to_heads({query, key, value}, "attention's q, k and v");
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& [exchange, heads] = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    auto slices = exchange.to_slices(gradients, heads, "the gradient of attention's q, k and v");
    return {slices[0], slices[1], slices[2], Tensor()};
  }
};

struct ExchangeToSlices : Function<ExchangeToSlices> {
  static Tensor forward(AutogradContext* ctx, const Tensor& heads, HeadExchange exchange, int64_t query_heads,
                        const std::optional<Tensor>& known) {
    ctx->saved_data["exchange"] = core::to_capsule(exchange);
    // A fresh alias: autograd makes what is returned an output of the graph, and must not do that to a kept
    // tensor.
    if (known) return known->detach();
    return exchange.to_slices({heads}, {query_heads}, "attention's output")[0];
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& exchange = core::from_capsule<HeadExchange>(ctx->saved_data["exchange"]);
    return {exchange.to_heads({gradients[0]}, "the gradient of attention's output")[0], Tensor(), Tensor(),
            Tensor()};
  }
};

}  // namespace

QueryKeyValue exchange_to_heads(const QueryKeyValue& slices, const HeadLayout& layout,
                                const std::vector<int64_t>& slice_lengths, const comm::Group& group) {
  if (group.size() == 1) return slices;
  HeadExchange exchange(group, {layout.queries(), layout.keys(), layout.keys()}, slice_lengths);
  auto parts = ExchangeToHeads::apply(slices.query, slices.key, slices.value, exchange);
  return {parts[0], parts[1], parts[2]};
}

Tensor exchange_to_slices(const Tensor& heads, const HeadLayout& layout,
                          const std::vector<int64_t>& slice_lengths, const comm::Group& group,
                          const Tensor& known) {
  if (group.size() == 1) return heads;
  HeadExchange exchange(group, {layout.queries()}, slice_lengths);
  return ExchangeToSlices::apply(heads, exchange, layout.query_heads(),
                                 known.defined() ? std::optional(known) : std::nullopt);
}

}  // namespace trireme::sp
