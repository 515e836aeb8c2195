// Where the time of a training step goes: attention, matrix products, waiting for collectives, and the rest.
//
// Run by bench/step_profile.sh, which starts the ranks. Arguments: sequence length, fp32 or bf16, layer or
// keep_attention. The model is a Llama of hidden 512, 4 layers, 8 heads, 4 key/value heads, MLP 1376,
// vocabulary 8192, on random tokens.
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/record_function.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "trireme/comm/mesh.h"
#include "trireme/core/memory.h"
#include "trireme/model/weights.h"
#include "trireme/train/engine.h"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

enum class Kind { attention_forward, attention_backward, product, elsewhere };

Kind kind_of(std::string_view name) {
  if (name.find("flash_attention") != name.npos)
    return name.find("backward") != name.npos ? Kind::attention_backward : Kind::attention_forward;
  for (std::string_view product : {"aten::mm", "aten::addmm", "aten::bmm", "aten::addmm_", "aten::matmul"})
    if (name == product) return Kind::product;
  return Kind::elsewhere;
}

// Seconds by kind and by operator; only the outermost operator of a call counts. One thread computes.
struct Profile {
  std::map<Kind, double> by_kind;
  std::map<std::string, double> by_name;
  int depth = 0;
};
Profile profile;

struct Started : at::ObserverContext {
  Clock::time_point start = Clock::now();
};

// Autograd's own records enclose the operators that they run.
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (!name.starts_with("aten::") && !name.starts_with("c10d::")) return nullptr;
  ++profile.depth;
  return std::make_unique<Started>();
}

void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!context || --profile.depth > 0) return;
  const double seconds =
      std::chrono::duration<double>(Clock::now() - static_cast<Started*>(context)->start).count();
  profile.by_kind[kind_of(function.name())] += seconds;
  profile.by_name[function.name()] += seconds;
}

model::Config peer_config() {
  return model::parse_config({{"model_type", "llama"},
                              {"vocab_size", 8192},
                              {"hidden_size", 512},
                              {"intermediate_size", 1376},
                              {"num_hidden_layers", 4},
                              {"num_attention_heads", 8},
                              {"num_key_value_heads", 4},
                              {"max_position_embeddings", 131072}});
}

sp::SlicedBatch random_batch(int64_t sequence, const comm::Mesh& mesh) {
  at::Tensor tokens = at::randint(8192, {1, sequence}, at::kLong);
  mesh.world.broadcast(tokens, 0, "the tokens");
  return sp::slice_batch({tokens, tokens, {}, {}}, mesh.sequence.rank(), mesh.sequence.size());
}

double waited(const comm::Mesh& mesh) {
  return mesh.world.traffic().seconds_waited() + mesh.sequence.traffic().seconds_waited() +
         mesh.data.traffic().seconds_waited();
}

void print_step(double seconds, double collectives) {
  const auto of = [](Kind kind) { return profile.by_kind[kind]; };
  const double rest =
      seconds - of(Kind::attention_forward) - of(Kind::attention_backward) - of(Kind::product) - collectives;
  std::printf("%.3f s: attention %.3f + %.3f, products %.3f, collectives %.3f, rest %.3f\n", seconds,
              of(Kind::attention_forward), of(Kind::attention_backward), of(Kind::product), collectives,
              rest);
}

void print_operators() {
  std::multimap<double, std::string, std::greater<>> sorted;
  for (const auto& [name, seconds] : profile.by_name) sorted.emplace(seconds, name);
  int shown = 0;
  for (const auto& [seconds, name] : sorted)
    if (shown++ < 25) std::printf("  %8.4f s  %s\n", seconds, name.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: step_profile SEQUENCE fp32|bf16 layer|keep_attention TILES\n";
    return 2;
  }
  const auto environment = comm::read_environment([](const char* name) { return std::getenv(name); });
  const auto connection = comm::Connection::open(environment, at::kCPU, std::chrono::seconds(600));
  const auto mesh = comm::Mesh::create(connection, connection.size());
  const auto dtype = std::string(argv[2]) == "bf16" ? at::kBFloat16 : at::kFloat;
  const auto recompute =
      std::string(argv[3]) == "layer" ? model::Recompute::layer : model::Recompute::all_but_attention;
  model::Decoder decoder(peer_config(), {.dtype = dtype}, mesh);
  model::initialize_weights(decoder, 1);
  const int64_t tiles = std::atoll(argv[4]);
  train::Engine engine(decoder, mesh,
                       {.recompute = recompute, .mlp_tiles = tiles > 0 ? std::optional(tiles) : std::nullopt},
                       1.0);
  at::addGlobalCallback(at::RecordFunctionCallback(on_start, on_end).scopes({at::RecordScope::FUNCTION}));
  for (int step = 0; step < 3; ++step) {
    const auto batch = random_batch(std::atoll(argv[1]), mesh);
    mesh.world.barrier("the start of a step");
    profile = {};
    const double waited_before = waited(mesh);
    const auto start = Clock::now();
    engine.step({batch}, zero::decayed_and_not({}));
    if (connection.rank() == 0)
      print_step(std::chrono::duration<double>(Clock::now() - start).count(), waited(mesh) - waited_before);
  }
  if (connection.rank() == 0) {
    print_operators();
    std::printf("peak resident %.0f MiB\n", double(core::peak_resident_bytes()) / (1 << 20));
  }
  return 0;
}
