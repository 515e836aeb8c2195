// The decoder as one process of plain autograd would run it: dense attention, full logits, no partition, no
// tile.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/attention_reference.h"
#include "support/reference_loss.h"
#include "trireme/model/config.h"
#include "trireme/model/parameters.h"

namespace trireme::tests {

/// Whole rows of a step: [B, S] each.
struct ReferenceBatch {
  at::Tensor tokens, labels;  // labels not shifted
  std::vector<std::vector<int64_t>> document_lengths;
};

/// Parameters by their Hugging Face names; the loss, and AdamW with clipping, by their formulas.
class ReferenceDecoder {
 public:
  using Parameters = std::map<std::string, at::Tensor>;

  ReferenceDecoder(const model::Config& config, at::ScalarType dtype) : config_(config), dtype_(dtype) {
    int64_t index = 0;
    for (const auto& unit : model::plan_units(config))
      for (const auto& parameter : unit.parameters)
        for (const auto& piece : parameter.pieces) {
          at::manual_seed(100 + index++);
          at::Tensor value = at::randn(piece.shape, at::kDouble) * 0.2;
          if (parameter.initial == model::Initial::ones) value = value + 1;
          parameters_[piece.name] = value.to(at::kFloat).to(dtype).requires_grad_(true);
          decay_[piece.name] = parameter.spec.group == model::kDecayed;
        }
  }

  const Parameters& parameters() const { return parameters_; }

  /// Tensors whose names begin so are not trained.
  void freeze(const std::string& prefix) {
    for (auto& [name, value] : parameters_)
      if (name.starts_with(prefix)) value.requires_grad_(false);
  }

  void set_loss(const alst::LossOptions& loss) { loss_ = loss; }

  /// The tensor takes `factor` times the learning rate, and weight decay `decay`.
  void set_numbers(const std::string& name, double factor, double decay) { own_[name] = {factor, decay}; }

  /// Mean loss over the real targets of all batches, with `.grad()` of every parameter set.
  at::Tensor loss_and_gradients(const std::vector<ReferenceBatch>& batches) {
    for (auto& [name, value] : parameters_) value.mutable_grad().reset();
    at::Tensor sum = at::zeros({}, dtype_);
    int64_t count = 0;
    for (const auto& batch : batches) {
      at::Tensor targets = next_tokens(batch);
      sum = sum + reference_token_losses(logits(batch).flatten(0, 1), targets.view({-1}), loss_).sum();
      count += targets.ne(-100).sum().item<int64_t>();
    }
    at::Tensor loss = sum / double(std::max<int64_t>(1, count));
    torch::autograd::backward({loss});
    return loss.detach();
  }

  double gradient_norm() const {
    double square = 0;
    for (const auto& [name, value] : parameters_)
      if (value.requires_grad()) square += value.grad().to(at::kDouble).square().sum().item<double>();
    return std::sqrt(square);
  }

  /// AdamW (arXiv:1711.05101) after clipping to norm 1; weight decay on matrices alone.
  void step(double lr, double beta1, double beta2, double eps, double weight_decay) {
    at::NoGradGuard no_graph;
    const double factor = std::min(1.0, 1.0 / (gradient_norm() + 1e-6));
    ++steps_;
    for (auto& [name, value] : parameters_) {
      if (!value.requires_grad()) continue;
      const auto own = own_.find(name);
      const double rate = own == own_.end() ? lr : lr * own->second.first;
      const double decay = own != own_.end() ? own->second.second : decay_[name] ? weight_decay : 0;
      at::Tensor g = value.grad() * factor;
      auto& m = first_[name];
      auto& v = second_[name];
      if (!m.defined()) m = at::zeros_like(g), v = at::zeros_like(g);
      m = m * beta1 + g * (1 - beta1);
      v = v * beta2 + g * g * (1 - beta2);
      value.mul_(1 - rate * decay);
      value.sub_(rate * (m / (1 - std::pow(beta1, steps_))) /
                 ((v / (1 - std::pow(beta2, steps_))).sqrt() + eps));
    }
  }

  /// [B, S, V], before any soft cap.
  at::Tensor logits(const ReferenceBatch& batch) const {
    at::Tensor x = at::embedding(at("model.embed_tokens.weight"), batch.tokens);
    for (int64_t i = 0; i < config_.layers; ++i) x = layer(x, i, batch);
    const auto& head = at(config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
    return at::matmul(norm(x, at("model.norm.weight")), head.t());
  }

 private:
  const at::Tensor& at(const std::string& name) const { return parameters_.at(name); }

  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const {
    return x / (x.square().mean(-1, true) + config_.norm_epsilon).sqrt() * weight;
  }

  at::Tensor heads(const at::Tensor& x, const std::string& name, int64_t count) const {
    at::Tensor y = at::matmul(x, at(name + "_proj.weight").t());
    if (config_.qkv_bias) y = y + at(name + "_proj.bias");
    return y.view({x.size(0), x.size(1), count, config_.head_size});
  }

  // Element i with element i + D/2, by the angle of the token's place in its document.
  at::Tensor rotate(const at::Tensor& x, const ReferenceBatch& batch) const {
    const int64_t D = config_.head_size;
    at::Tensor result = at::zeros_like(x);
    std::vector<at::Tensor> rows;
    for (int64_t b = 0; b < x.size(0); ++b) {
      std::vector<at::Tensor> places;
      for (int64_t length : batch.document_lengths[size_t(b)]) places.push_back(at::arange(length, dtype_));
      rows.push_back(at::cat(places));
    }
    at::Tensor frequency = at::exp(at::arange(0, D, 2, dtype_) * (-std::log(config_.rope.theta) / double(D)));
    at::Tensor angle = (at::stack(rows).unsqueeze(-1) * frequency).unsqueeze(2);  // [B, S, 1, D/2]
    at::Tensor a = x.narrow(3, 0, D / 2), b = x.narrow(3, D / 2, D / 2);
    return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
  }

  at::Tensor layer(const at::Tensor& x, int64_t index, const ReferenceBatch& batch) const {
    const std::string name = "model.layers." + std::to_string(index) + ".", attention = name + "self_attn.";
    at::Tensor n = norm(x, at(name + "input_layernorm.weight"));
    at::Tensor q = heads(n, attention + "q", config_.heads), k = heads(n, attention + "k", config_.kv_heads);
    at::Tensor v = heads(n, attention + "v", config_.kv_heads);
    if (config_.qk_norm) {
      q = norm(q, at(attention + "q_norm.weight"));
      k = norm(k, at(attention + "k_norm.weight"));
    }
    const sp::AttentionContext context{.document_lengths = batch.document_lengths,
                                       .window = config_.windows[size_t(index)]};
    at::Tensor attended = reference_attention(rotate(q, batch), rotate(k, batch), v, context).flatten(2, 3);
    at::Tensor middle = x + at::matmul(attended, at(attention + "o_proj.weight").t());
    at::Tensor m = norm(middle, at(name + "post_attention_layernorm.weight"));
    at::Tensor gate = at::matmul(m, at(name + "mlp.gate_proj.weight").t()),
               up = at::matmul(m, at(name + "mlp.up_proj.weight").t());
    return middle + at::matmul(gate * at::sigmoid(gate) * up, at(name + "mlp.down_proj.weight").t());
  }

  static at::Tensor next_tokens(const ReferenceBatch& batch) {
    at::Tensor targets = at::full_like(batch.labels, -100);
    for (int64_t b = 0; b < batch.tokens.size(0); ++b) {
      int64_t end = 0, token = 0;
      for (int64_t length : batch.document_lengths[size_t(b)]) {
        end += length;
        for (; token + 1 < end; ++token) targets[b][token] = batch.labels[b][token + 1];
        token = end;
      }
    }
    return targets;
  }

  model::Config config_;
  at::ScalarType dtype_;
  Parameters parameters_;
  alst::LossOptions loss_;
  std::map<std::string, bool> decay_;
  std::map<std::string, std::pair<double, double>> own_;
  std::map<std::string, at::Tensor> first_, second_;
  int64_t steps_ = 0;
};

}  // namespace trireme::tests
