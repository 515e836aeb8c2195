#include "trireme/sp/head_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

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

// The memory of parts [1, S, heads, D] that lie side by side and fill it; undefined where they do not.
Tensor flat_where_side_by_side(const std::vector<Tensor>& parts) {
  int64_t heads = 0;
  for (const auto& part : parts) heads += part.size(2);
  const int64_t S = parts[0].size(1), D = parts[0].size(3);
  int64_t offset = parts[0].storage_offset();
  for (const auto& part : parts) {
    const bool in_place =
        part.storage().unsafeGetStorageImpl() == parts[0].storage().unsafeGetStorageImpl() &&
        part.storage_offset() == offset && part.stride(3) == 1 && part.stride(2) == D &&
        part.stride(1) == heads * D;
    if (part.numel() > 0 && !in_place) return {};
    offset += part.size(2) * D;
  }
  return parts[0].as_strided({S * heads * D}, {1}, parts[0].storage_offset());
}

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Parts side by side, filled from what arrives. Heads that several ranks work on, or none, are sums over
// ranks, formed in fp32 at least.
class PartSums {
 public:
  // `whole` [B, s, heads of all parts, D], of any values.
  PartSums(const std::vector<std::vector<HeadRange>>& ranges, const std::vector<int64_t>& heads, Tensor whole)
      : ranges_(ranges), whole_(std::move(whole)), parts_(whole_.split_with_sizes(heads, 2)) {
    const auto wide = at::promoteTypes(whole_.scalar_type(), at::kFloat);
    for (size_t part = 0; part < heads.size(); ++part) {
      adds_.push_back(overlap(ranges_[part], heads[part]));
      if (!adds_[part])
        sums_.push_back(parts_[part]);
      else if (whole_.scalar_type() == wide)
        sums_.push_back(parts_[part].zero_());
      else
        sums_.push_back(at::zeros(parts_[part].sizes(), whole_.options().dtype(wide)));
    }
  }

  // block [B, s, heads of all parts that `rank` works on, D]
  void add(size_t rank, const Tensor& block) {
    int64_t place = 0;
    for (size_t part = 0; part < sums_.size(); ++part) {
      const auto [first, count] = ranges_[part][rank];
      Tensor target = sums_[part].narrow(2, first, count);
      const Tensor from = block.narrow(2, place, count);
      adds_[part] ? target.add_(from) : target.copy_(from);
      place += count;
    }
  }

  Tensor take() {
    for (size_t part = 0; part < sums_.size(); ++part)
      if (!sums_[part].is_same(parts_[part])) parts_[part].copy_(sums_[part]);
    return std::move(whole_);
  }

 private:
  const std::vector<std::vector<HeadRange>>& ranges_;
  Tensor whole_;
  std::vector<Tensor> parts_, sums_;
  std::vector<bool> adds_;
};

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

std::vector<int64_t> HeadExchange::local_heads() const {
  std::vector<int64_t> heads;
  for (size_t part = 0; part < ranges_.size(); ++part) heads.push_back(head_of_part(part, group_.rank()));
  return heads;
}

int64_t HeadExchange::heads_of(int64_t rank) const {
  int64_t heads = 0;
  for (size_t part = 0; part < ranges_.size(); ++part) heads += head_of_part(part, rank);
  return heads;
}

// Block p sent: my tokens of rank p's heads [B, s, heads of p, D]. Block p received: rank p's tokens of my
// heads.
Tensor HeadExchange::to_heads(const std::vector<Tensor>& slices, std::string_view purpose) const {
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
  Tensor arrived;
  {
    Tensor send = at::empty({sum(sent)}, slices[0].options().requires_grad(false));
    Blocks(send, sent).each(B, std::vector<int64_t>(P, s), heads, D, [&](size_t p, const Tensor& block) {
      int64_t place = 0;
      for (size_t part = 0; part < slices.size(); ++part) {
        const auto [first, count] = ranges_[part][p];
        block.narrow(2, place, count).copy_(slices[part].narrow(2, first, count));
        place += count;
      }
    });
    arrived = group_.all_to_all(send, sent, received, purpose);
  }
  if (B == 1) return arrived.view({1, sequence_, mine, D});
  Tensor whole = at::empty({B, sequence_, mine, D}, arrived.options());
  int64_t token = 0;
  Blocks(arrived, received)
      .each(B, slice_lengths_, std::vector<int64_t>(P, mine), D, [&](size_t p, const Tensor& block) {
        whole.narrow(1, token, slice_lengths_[p]).copy_(block);
        token += slice_lengths_[p];
      });
  return whole;
}

// Block p sent: rank p's tokens of my heads. Block p received: my tokens of rank p's heads.
Tensor HeadExchange::to_slices(const std::vector<Tensor>& parts, const std::vector<int64_t>& heads,
                               std::string_view purpose) const {
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
  Tensor arrived;
  {
    Tensor send = B == 1 ? flat_where_side_by_side(parts) : Tensor();
    if (!send.defined()) {
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
    arrived = group_.all_to_all(send, sent, received, purpose);
  }
  PartSums sums(ranges_, heads, at::empty({B, s, sum(heads), D}, options));
  Blocks(arrived, received)
      .each(B, std::vector<int64_t>(P, s), counts, D,
            [&](size_t p, const Tensor& block) { sums.add(p, block); });
  return sums.take();
}

std::vector<int64_t> agree_slice_lengths(int64_t length, const comm::Group& group) {
  Tensor lengths = group.all_gather(at::scalar_tensor(length, at::kLong), "the lengths of the slices");
  return {lengths.data_ptr<int64_t>(), lengths.data_ptr<int64_t>() + group.size()};
}

namespace {

// One tensor side by side, or one for each of queries, keys and values.
struct ExchangeToHeads : Function<ExchangeToHeads> {
  struct Saved {
    HeadExchange exchange;
    std::vector<int64_t> heads;
  };
  static variable_list forward(AutogradContext* ctx, at::TensorList slices, const Saved& saved) {
    ctx->saved_data["saved"] = core::to_capsule(saved);
    ctx->saved_data["packed"] = slices.size() == 1;
    const auto parts = slices.size() == 1 ? slices[0].split_with_sizes(saved.heads, 2) : slices.vec();
    return saved.exchange.to_heads(parts, "attention's q, k and v")
        .split_with_sizes(saved.exchange.local_heads(), 2);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& [exchange, heads] = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    Tensor packed = exchange.to_slices(gradients, heads, "the gradient of attention's q, k and v");
    auto result =
        ctx->saved_data["packed"].toBool() ? variable_list{packed} : packed.split_with_sizes(heads, 2);
    result.emplace_back();
    return result;
  }
};

struct ExchangeToSlices : Function<ExchangeToSlices> {
  static Tensor forward(AutogradContext* ctx, const Tensor& heads, HeadExchange exchange,
                        int64_t query_heads) {
    ctx->saved_data["exchange"] = core::to_capsule(exchange);
    return exchange.to_slices({heads}, {query_heads}, "attention's output");
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& exchange = core::from_capsule<HeadExchange>(ctx->saved_data["exchange"]);
    return {exchange.to_heads({gradients[0]}, "the gradient of attention's output"), Tensor(), Tensor()};
  }
};

QueryKeyValue to_heads(at::TensorList slices, const HeadLayout& layout,
                       const std::vector<int64_t>& slice_lengths, const comm::Group& group) {
  HeadExchange exchange(group, {layout.queries(), layout.keys(), layout.keys()}, slice_lengths);
  auto parts = ExchangeToHeads::apply(
      slices,
      ExchangeToHeads::Saved{exchange, {layout.query_heads(), layout.key_heads(), layout.key_heads()}});
  return {parts[0], parts[1], parts[2]};
}

}  // namespace

QueryKeyValue exchange_to_heads(const QueryKeyValue& slices, const HeadLayout& layout,
                                const std::vector<int64_t>& slice_lengths, const comm::Group& group) {
  if (group.size() == 1) return slices;
  return to_heads({slices.query, slices.key, slices.value}, layout, slice_lengths, group);
}

QueryKeyValue exchange_to_heads(const Tensor& packed, const HeadLayout& layout,
                                const std::vector<int64_t>& slice_lengths, const comm::Group& group) {
  if (group.size() > 1) return to_heads(packed, layout, slice_lengths, group);
  auto parts =
      packed.split_with_sizes({layout.query_heads(), layout.key_heads(), layout.key_heads()}, /*dim=*/2);
  return {parts[0], parts[1], parts[2]};
}

Tensor exchange_to_slices(const Tensor& heads, const HeadLayout& layout,
                          const std::vector<int64_t>& slice_lengths, const comm::Group& group) {
  if (group.size() == 1) return heads;
  HeadExchange exchange(group, {layout.queries()}, slice_lengths);
  return ExchangeToSlices::apply(heads, exchange, layout.query_heads());
}

}  // namespace trireme::sp
