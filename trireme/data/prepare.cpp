#include "trireme/data/prepare.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "trireme/core/check.h"
#include "trireme/core/mapped_file.h"
#include "trireme/core/safetensors_writer.h"
#include "trireme/core/text.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using core::DType;

struct Source {
  fs::path path;
  bool named;        ///< by the user, not found in a directory
  int64_t size = 0;  ///< bytes
};

bool ends_with_any(std::string_view name, const std::vector<std::string>& suffixes) {
  const auto matches = [&](const std::string& suffix) { return name.ends_with(suffix); };
  return suffixes.empty() || std::any_of(suffixes.begin(), suffixes.end(), matches);
}

/// The regular files in and below a directory, sorted by path.
std::vector<fs::path> files_below(const fs::path& directory, const PrepareOptions& options) {
  std::vector<fs::path> files;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      std::error_code gone;  // a link that leads nowhere is no file
      if (entry.is_regular_file(gone) && ends_with_any(entry.path().filename().string(), options.suffixes))
        files.push_back(entry.path());
    }
  } catch (const fs::filesystem_error& error) {
    throw core::ValueError(core::concatenate("[data] directories must be readable; got ",
                                             error.path1().string(), ": ", error.code().message()));
  }
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

/// Keeps each file where it was given first, and counts the other times. One that was named anywhere counts
/// as named.
std::vector<Source> without_repeats(std::vector<Source> sources, PrepareResult& result) {
  std::vector<Source> once;
  std::map<fs::path, size_t> places;
  for (Source& source : sources) {
    std::error_code unreadable;  // opening the file tells
    fs::path real = fs::canonical(source.path, unreadable);
    const auto [place, is_new] = places.try_emplace(unreadable ? source.path : std::move(real), once.size());
    if (is_new) {
      once.push_back(std::move(source));
    } else {
      once[place->second].named |= source.named;
      ++result.repeated;
    }
  }
  return once;
}

std::vector<Source> find_sources(const std::vector<fs::path>& inputs, const PrepareOptions& options) {
  std::vector<Source> sources;
  for (const fs::path& input : inputs) {
    std::error_code missing;
    core::check_value(fs::exists(input, missing), "[data] an input is a file or a directory; got ",
                      input.string(), ", which is not there");
    if (fs::is_directory(input)) {
      for (auto& path : files_below(input, options)) sources.push_back({std::move(path), false});
    } else {
      sources.push_back({input, true});
    }
  }
  return sources;
}

bool looks_binary(std::span<const std::byte> bytes) {
  const auto head = bytes.first(std::min<size_t>(bytes.size(), 8192));
  return std::find(head.begin(), head.end(), std::byte{0}) != head.end();
}

/// Keeps the sources that become documents, their sizes noted, and counts the rest.
std::vector<Source> choose_documents(std::vector<Source> sources, const fs::path& output,
                                     PrepareResult& result) {
  std::vector<Source> chosen;
  for (Source& source : sources) {
    std::error_code no_output_yet;
    if (fs::equivalent(source.path, output, no_output_yet)) continue;
    const core::MappedFile file(source.path);
    source.size = file.size();
    if (source.size == 0) {
      ++result.empty;
    } else if (!source.named && looks_binary(file.bytes())) {
      ++result.binary;
    } else {
      chosen.push_back(std::move(source));
    }
  }
  return chosen;
}

/// "1 input with 2 empty and 0 binary files and no other", or that no name ended as it had to.
std::string describe_search(size_t inputs, const PrepareOptions& options, const PrepareResult& result) {
  const std::string given = core::counted(int64_t(inputs), "input") + " with ";
  if (options.suffixes.empty() || result.empty + result.binary > 0)
    return core::concatenate(given, result.empty, " empty and ", core::counted(result.binary, "binary file"),
                             " and no other");
  std::string suffixes;
  for (const std::string& suffix : options.suffixes)
    suffixes += (suffixes.empty() ? "" : " or ") + core::printable(suffix);
  return given + "no file whose name ends in " + suffixes;
}

/// Widens bytes to tokens on their way to the file, a megabyte at a time.
class TokenStream {
 public:
  explicit TokenStream(core::SafetensorsWriter& writer) : writer_(writer) { buffer_.reserve(kTokens); }

  void append(int32_t token) {
    buffer_.push_back(token);
    if (buffer_.size() == kTokens) flush();
  }
  void flush() {
    writer_.write("tokens", std::as_bytes(std::span(buffer_)));
    buffer_.clear();
  }

 private:
  static constexpr size_t kTokens = size_t{1} << 18;
  core::SafetensorsWriter& writer_;
  std::vector<int32_t> buffer_;
};

void write_tokens(const std::vector<Source>& documents, core::SafetensorsWriter& writer) {
  TokenStream stream(writer);
  for (const Source& document : documents) {
    const core::MappedFile file(document.path);
    core::check_value(file.size() == document.size, "[data] files stay as they are while they are read; got ",
                      document.path.string(), " with ", file.size(), " bytes after ", document.size);
    for (const std::byte byte : file.bytes()) stream.append(std::to_integer<int32_t>(byte));
    stream.append(kEndOfDocument);
  }
  stream.flush();
}

}  // namespace

PrepareResult prepare_bytes(const std::vector<fs::path>& inputs, const fs::path& output,
                            const PrepareOptions& options) {
  std::error_code unreadable;  // writing the file tells
  core::check_value(!fs::is_directory(output, unreadable) && output.has_filename(),
                    "[data] the output must be a file; got ", output.string(),
                    ", a directory; name a file, as in corpus.safetensors");
  PrepareResult result;
  auto sources = without_repeats(find_sources(inputs, options), result);
  const auto documents = choose_documents(std::move(sources), output, result);
  if (documents.empty())
    throw core::ValueError(core::concatenate("[data] a corpus needs at least one file with text; got ",
                                             describe_search(inputs.size(), options, result)));
  std::vector<int64_t> starts;
  for (const Source& document : documents) {
    starts.push_back(result.tokens);
    result.tokens += document.size + 1;
  }
  result.documents = static_cast<int64_t>(documents.size());

  core::SafetensorsWriter writer(
      output, {{"tokens", DType::i32, {result.tokens}}, {"document_starts", DType::i64, {result.documents}}});
  writer.write("document_starts", std::as_bytes(std::span<const int64_t>(starts)));
  write_tokens(documents, writer);
  writer.finish();
  return result;
}

}  // namespace trireme::data
