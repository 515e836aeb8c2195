// A whole training run, from options to a trained model directory.
#pragma once

#include <string>

#include "trireme/comm/environment.h"
#include "trireme/train/options.h"

namespace trireme::train {

/// Throws `ValueError` where this machine has no device of the kind that `options` ask for.
void check_device(const Options& options);

/// Trains as one rank of a run: joins the others, builds or loads the model, takes every step, and saves.
/// Rank 0 writes `output`/options.json, metrics.jsonl and model/, and shows progress on standard output.
/// `timeline`, unless empty, is a file that gets every rank's uses of units, gathers and reductions, in
/// Chrome's trace format. Returns when all ranks are done. Throws `core::ValueError` for what the user can
/// mend, `core::RunError` where the gradient is not finite, `core::CommunicationError` where ranks lose each
/// other.
void train(const Options& options, const comm::Environment& environment, const std::string& timeline = "");

}  // namespace trireme::train
