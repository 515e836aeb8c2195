// A corpus of tokens in a safetensors file: `tokens` (I32, U16, U32 or I64), `document_starts` (I64), and
// where wanted `loss_mask` (U8).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/safetensors.h"

namespace trireme::data {

/// Tokens `[begin, end)` of a file.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

/// A token file, mapped: opening reads the header and the documents' borders, not the tokens. Move-only; safe
/// to read from many threads.
class TokenFile {
 public:
  /// Maps and checks the file. Throws `ValueError`, naming file and rule, unless: `tokens` is 1-D and not
  /// empty, `document_starts` begins with 0 and rises to below the token count, `loss_mask` is as long as
  /// `tokens`, and nothing else is in the file.
  explicit TokenFile(const std::filesystem::path& path);
  explicit TokenFile(core::SafetensorsFile file);

  int64_t token_count() const { return token_count_; }
  int64_t documents() const { return static_cast<int64_t>(document_starts_.size()); }

  /// The tokens of document `index`; none is empty.
  TokenRange document(int64_t index) const;

  /// Where each document begins, rising from 0. Valid while this object lives.
  std::span<const int64_t> document_starts() const { return document_starts_; }

  /// Copies `out.size()` tokens from `begin` on. Throws `ValueError`, naming file, position and value, for a
  /// token outside `[0, vocabulary)`.
  void read_tokens(int64_t begin, std::span<int64_t> out, int64_t vocabulary) const;

  bool has_loss_mask() const { return loss_mask_ != nullptr; }

  /// Copies the mask of the tokens from `begin` on: 1 where a token is a target of the loss, 0 where it is
  /// context only; all 1 in a file without one. Throws `ValueError` for any other value.
  void read_loss_mask(int64_t begin, std::span<uint8_t> out) const;

  /// The path, for error messages.
  const std::string& name() const { return file_.name(); }

 private:
  void check_range(int64_t begin, size_t size) const;
  void load_document_starts();

  core::SafetensorsFile file_;
  const core::TensorEntry* tokens_ = nullptr;     ///< in file_
  const core::TensorEntry* loss_mask_ = nullptr;  ///< in file_, or null
  int64_t token_count_ = 0;
  std::vector<int64_t> document_starts_;
};

/// Writes a token file: `tokens` as I32, `document_starts` as they are, and `loss_mask` unless it is empty.
/// Throws `ValueError` where `TokenFile` would refuse the result, and where the file cannot be written.
void write_token_file(const std::filesystem::path& path, std::span<const int32_t> tokens,
                      std::span<const int64_t> document_starts, std::span<const uint8_t> loss_mask = {});

}  // namespace trireme::data
