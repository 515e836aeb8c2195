// Making a token file from text: a token is a byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// The token behind each document's bytes, and how many tokens there are with it.
inline constexpr int32_t kEndOfDocument = 256;
inline constexpr int64_t kByteVocabulary = 257;

struct PrepareOptions {
  /// Of the files in a directory, only names that end with one of these count (".py"); empty: all.
  std::vector<std::string> suffixes;
};

struct PrepareResult {
  int64_t documents = 0;
  int64_t tokens = 0;    ///< bytes and ends of documents
  int64_t empty = 0;     ///< files skipped because they hold nothing
  int64_t binary = 0;    ///< files found in directories and skipped because they look like no text
  int64_t repeated = 0;  ///< times that a file was given again
};

/// Writes the files as one document each, in the order of `inputs`; a directory stands for all files in and
/// below it, sorted by path, symbolic links to directories not followed. Files found that way which have a
/// zero byte among their first 8192 are no text, and skipped; a file named in `inputs` is taken as it is. A
/// file that is given more than once, under whatever path, is taken where it comes first. The output itself
/// is never an input. Reads each file while writing: memory does not grow with the corpus. Throws
/// `ValueError` where an input is missing, unreadable or changes meanwhile, where nothing is found, and where
/// the output is a directory.
PrepareResult prepare_bytes(const std::vector<std::filesystem::path>& inputs,
                            const std::filesystem::path& output, const PrepareOptions& options = {});

}  // namespace trireme::data
