// Values of a decoder's parameters: from random numbers, from a Hugging Face directory, and back into one.
#pragma once

#include <filesystem>

#include "trireme/model/decoder.h"
#include "trireme/model/weight_files.h"

namespace trireme::model {

/// Matrices from a normal distribution of the config's initializer_range, norms 1, biases 0. The values
/// depend on `seed` and on each tensor's name alone, not on how parameters are partitioned. At most one
/// tensor is whole at a time.
void initialize_weights(Decoder& decoder, int64_t seed);

/// Each rank reads what it stores and nothing else. Throws `core::ValueError`, naming file and tensor, where
/// one is missing, has another shape than the config says, holds no floating-point numbers, or has no place
/// in the model.
void load_weights(Decoder& decoder, const WeightFiles& files);

/// Writes `directory`: config.json and weights in the parameters' dtype, under the names that they were
/// loaded by, in files of at most `max_file_bytes`. Made aside and then put in place of what was there. Files
/// of the source directory that describe the tokenizer are copied; `source` may be empty. Every rank must
/// call this; rank 0 writes.
void save_weights(Decoder& decoder, const std::filesystem::path& directory,
                  const std::filesystem::path& source, int64_t max_file_bytes = int64_t{5} << 30);

}  // namespace trireme::model
