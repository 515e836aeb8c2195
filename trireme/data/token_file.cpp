#include "trireme/data/token_file.h"

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "trireme/core/check.h"
#include "trireme/core/safetensors_writer.h"
#include "trireme/core/text.h"

namespace trireme::data {
namespace {

using core::concatenate;
using core::DType;
using core::TensorEntry;
using core::ValueError;

constexpr std::array<std::string_view, 3> kNames{"tokens", "document_starts", "loss_mask"};

/// A misspelt `loss_mask` must not go unseen.
void check_names(const core::SafetensorsFile& file) {
  for (const TensorEntry& entry : file.entries()) {
    bool known = false;
    for (const auto name : kNames) known = known || entry.name == name;
    if (known) continue;
    const std::string_view meant = core::nearest(entry.name.substr(0, 40), kNames);
    throw ValueError(
        concatenate("[data] a token file holds tokens, document_starts and loss_mask alone; got ",
                    core::printable(entry.name), " in ", file.name(),
                    meant.empty() ? "" : concatenate("; is ", meant, " meant?")));
  }
}

void check_vector(const core::SafetensorsFile& file, const TensorEntry& entry) {
  core::check_value(entry.shape.size() == 1, "[data] ", entry.name, " has one dimension; got ",
                    entry.shape.size(), " in ", file.name());
}

/// The rule on document borders, shared by the reader and the writer.
void check_document_starts(std::span<const int64_t> starts, int64_t token_count, std::string_view file) {
  core::check_value(token_count > 0, "[data] a token file holds at least one token; got none in ", file);
  core::check_value(!starts.empty() && starts[0] == 0, "[data] document_starts begin with 0; got ",
                    starts.empty() ? "none" : std::to_string(starts[0]), " in ", file);
  for (size_t i = 1; i < starts.size(); ++i)
    if (starts[i] <= starts[i - 1])
      throw ValueError(concatenate("[data] document_starts rise, so that no document is empty; got ",
                                   starts[i - 1], " and then ", starts[i], " at ", i, " in ", file));
  core::check_value(starts.back() < token_count, "[data] document_starts lie below the token count; got ",
                    starts.back(), " of ", token_count, " in ", file);
}

/// Widens tokens of type `Stored`; gives the index of the first one outside [0, vocabulary), or -1.
template <class Stored>
int64_t widen(const std::byte* from, std::span<int64_t> out, int64_t vocabulary) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored token;
    std::memcpy(&token, from + i * sizeof(Stored), sizeof(Stored));  // may lie unaligned
    out[i] = static_cast<int64_t>(token);
    if (out[i] < 0 || out[i] >= vocabulary) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : TokenFile(core::SafetensorsFile(path)) {}

TokenFile::TokenFile(core::SafetensorsFile file) : file_(std::move(file)) {
  check_names(file_);
  tokens_ = &file_.at("tokens");
  check_vector(file_, *tokens_);
  const DType dtype = tokens_->dtype;
  core::check_value(dtype == DType::i32 || dtype == DType::u16 || dtype == DType::u32 || dtype == DType::i64,
                    "[data] tokens are I32, U16, U32 or I64; got ", core::dtype_name(dtype), " in ",
                    file_.name());
  token_count_ = tokens_->shape[0];
  load_document_starts();
  check_document_starts(document_starts_, token_count_, file_.name());
  loss_mask_ = file_.find("loss_mask");
  if (!loss_mask_) return;
  check_vector(file_, *loss_mask_);
  core::check_value(loss_mask_->dtype == DType::u8, "[data] loss_mask is U8; got ",
                    core::dtype_name(loss_mask_->dtype), " in ", file_.name());
  core::check_value(loss_mask_->shape[0] == token_count_, "[data] loss_mask is as long as tokens; got ",
                    loss_mask_->shape[0], " for ", token_count_, " in ", file_.name());
}

void TokenFile::load_document_starts() {
  const TensorEntry& entry = file_.at("document_starts");
  check_vector(file_, entry);
  core::check_value(entry.dtype == DType::i64, "[data] document_starts are I64; got ",
                    core::dtype_name(entry.dtype), " in ", file_.name());
  document_starts_.resize(static_cast<size_t>(entry.shape[0]));
  const auto bytes = file_.bytes(entry);
  if (!bytes.empty()) std::memcpy(document_starts_.data(), bytes.data(), bytes.size());
}

TokenRange TokenFile::document(int64_t index) const {
  core::check_value(index >= 0 && index < documents(), "[data] a document's index is below ", documents(),
                    "; got ", index);
  const auto at = static_cast<size_t>(index);
  return {document_starts_[at], index + 1 < documents() ? document_starts_[at + 1] : token_count_};
}

void TokenFile::check_range(int64_t begin, size_t size) const {
  const bool inside =
      begin >= 0 && begin <= token_count_ && size <= static_cast<size_t>(token_count_ - begin);
  core::check_value(inside, "[data] tokens are read inside the file; got ", size, " from ", begin, " on, of ",
                    token_count_, " in ", name());
}

void TokenFile::read_tokens(int64_t begin, std::span<int64_t> out, int64_t vocabulary) const {
  check_range(begin, out.size());
  const size_t size = core::dtype_bits(tokens_->dtype) / 8;
  const auto part = file_.bytes(*tokens_).subspan(size_t(begin) * size, out.size() * size);
  const std::byte* from = part.data();
  int64_t bad = -1;
  switch (tokens_->dtype) {
    case DType::u16:
      bad = widen<uint16_t>(from, out, vocabulary);
      break;
    case DType::u32:
      bad = widen<uint32_t>(from, out, vocabulary);
      break;
    case DType::i32:
      bad = widen<int32_t>(from, out, vocabulary);
      break;
    default:
      bad = widen<int64_t>(from, out, vocabulary);
      break;
  }
  file_.forget(part);  // a corpus is larger than what a step takes
  if (bad >= 0)
    throw ValueError(concatenate("[data] tokens lie in the vocabulary of ", vocabulary, "; got ",
                                 out[static_cast<size_t>(bad)], " at position ", begin + bad, " of ", name(),
                                 "; is it made with this model's tokenizer?"));
}

void TokenFile::read_loss_mask(int64_t begin, std::span<uint8_t> out) const {
  check_range(begin, out.size());
  if (out.empty()) return;
  if (!loss_mask_) {
    std::memset(out.data(), 1, out.size());
    return;
  }
  const auto part = file_.bytes(*loss_mask_).subspan(size_t(begin), out.size());
  std::memcpy(out.data(), part.data(), out.size());
  file_.forget(part);
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] > 1)
      throw ValueError(concatenate("[data] loss_mask is 0 or 1; got ", int{out[i]}, " at position ",
                                   begin + static_cast<int64_t>(i), " of ", name()));
}

void write_token_file(const std::filesystem::path& path, std::span<const int32_t> tokens,
                      std::span<const int64_t> document_starts, std::span<const uint8_t> loss_mask) {
  const auto count = static_cast<int64_t>(tokens.size());
  check_document_starts(document_starts, count, path.string());
  core::check_value(loss_mask.empty() || loss_mask.size() == tokens.size(),
                    "[data] loss_mask is as long as tokens; got ", loss_mask.size(), " for ", count, " in ",
                    path.string());
  std::vector<core::TensorSpec> tensors{
      {"tokens", DType::i32, {count}},
      {"document_starts", DType::i64, {static_cast<int64_t>(document_starts.size())}}};
  if (!loss_mask.empty()) tensors.push_back({"loss_mask", DType::u8, {count}});
  core::SafetensorsWriter writer(path, tensors);
  writer.write("tokens", std::as_bytes(tokens));
  writer.write("document_starts", std::as_bytes(document_starts));
  if (!loss_mask.empty()) writer.write("loss_mask", std::as_bytes(loss_mask));
  writer.finish();
}

}  // namespace trireme::data
