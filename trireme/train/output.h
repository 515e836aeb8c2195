// The directory that a run writes into, and the record of its options there.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/train/options.h"

namespace trireme::train {

/// Where the trained model goes.
std::string model_directory(const Options& options);

/// Throws `ValueError` where the trained model would take the place of the one it starts from. Touches
/// nothing.
void check_output(const Options& options);

/// Makes the output directory where it is not there yet. Throws `ValueError`, with the reason, where it
/// cannot be made, or what a run writes cannot be written there: before the run, not after its last step. For
/// one rank.
void make_output(const Options& options);

/// Removes what a rank that was killed while it saved has left behind, if anything.
void discard_partial_model(const Options& options);

/// Writes `output`/options.json: everything that the run was told, defaults filled in, the train batch size
/// that follows from `world_size` ranks among it. `read_options` reads it again. Throws `ValueError` where it
/// cannot be written.
void record_options(const Options& options, int64_t world_size);

}  // namespace trireme::train
