// What others have published of how much fits, in the terms of plan_memory: their machines and options, with
// the decoder here.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trireme/plan/machine.h"
#include "trireme/plan/setting.h"

namespace trireme::plan {

/// A longest sequence.
struct PublishedSequence {
  int64_t tokens;
  Setting setting;  ///< with that sequence
  Machine machine;
  std::string_view why;  ///< the plan differs from what was published, in a sentence
};

/// Of ALST (arXiv:2506.13996): Llama 8B on 1, 8 and 32 H100s of 80 GB, in machines of 8 with 1.9 TB. The
/// options are those of its recipes, ArcticTraining/projects/sequence-parallelism/run-h100-sp*-llama-8b.yml:
/// checkpoints and optimizer on the host, on 1 GPU the parameters too.
std::vector<PublishedSequence> published_sequences();

/// A largest model.
struct PublishedModel {
  std::string_view name;   ///< of the way it was trained
  std::string_view shape;  ///< taken for it: the sources give its parameters alone
  Setting setting;
  Machine machine;
  std::string_view why;  ///< it fits, or does not
};

/// Of ZeRO-Offload (arXiv:2101.06840) and of ZeRO-3 Offload (DeepSpeed's announcement of 2021-03-08), on
/// V100s of 32 GB: 13 and 40 billion parameters on one beside 1.5 TB, a trillion on 512 in machines of 16.
/// Rows of 1024 tokens, one a rank, 16-bit parameters.
std::vector<PublishedModel> published_models();

}  // namespace trireme::plan
