#include "trireme/core/safetensors.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/core/check.h"
#include "trireme/core/json.h"
#include "trireme/core/text.h"

namespace trireme::core {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kLargestHeader = 100'000'000;  // the limit of the format's own library

/// Throws unless `ok`: "[core] RULE; got VALUE in tensor 'NAME' of FILE".
template <class... Value>
void check_tensor(bool ok, std::string_view rule, std::string_view tensor, std::string_view file,
                  const Value&... value) {
  if (!ok)
    throw ValueError(
        concatenate("[core] ", rule, "; got ", value..., " in tensor ", printable(tensor), " of ", file));
}

/// The JSON header's text, after its length was checked against the file's.
std::string_view header_text(std::span<const std::byte> file, std::string_view name) {
  check_value(file.size() >= kLengthBytes,
              "[core] a safetensors file begins with 8 bytes of header length; got ", file.size(),
              " bytes in ", name);
  // What is no safetensors file at all is told from one that is cut off: its first bytes are no length.
  const bool has_header = file.size() == kLengthBytes || file[kLengthBytes] == std::byte{'{'};
  if (!has_header)
    throw ValueError(
        concatenate("[core] a safetensors file begins with '{' behind 8 bytes of header length; got ",
                    printable({reinterpret_cast<const char*>(file.data()), kLengthBytes + 1}), " in ", name,
                    ", which is no safetensors file"));
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(file[i]);
  check_value(length <= file.size() - kLengthBytes,
              "[core] a safetensors header must lie inside its file; got ", length, " bytes claimed in ",
              name, " of ", file.size(), " bytes; the file is cut off, or no safetensors file");
  check_value(length <= kLargestHeader, "[core] a safetensors header has at most ", kLargestHeader,
              " bytes; got ", length, " in ", name);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  check_value(text.starts_with('{'), "[core] a safetensors header begins with '{'; got ",
              printable(text.substr(0, 8)), " in ", name);
  return text;
}

/// A size or an offset: an integer that an int64 holds. Negative ones pass here, for a better message later.
int64_t integer(const json& value, std::string_view tensor, std::string_view file) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits)
    check_tensor(false, "sizes and offsets are 64-bit integers", tensor, file, printable(value.dump()));
  return value.get<int64_t>();
}

TensorEntry parse_entry(const std::string& name, const json& value, std::string_view file) {
  check_tensor(value.is_object(), "a tensor is described by an object", name, file, value.type_name());
  for (const auto& [key, unused] : value.items())
    check_tensor(key == "dtype" || key == "shape" || key == "data_offsets",
                 "a tensor has the keys dtype, shape and data_offsets", name, file, printable(key));
  check_tensor(value.size() == 3, "a tensor has the keys dtype, shape and data_offsets", name, file,
               value.size(), " of them");

  TensorEntry entry;
  entry.name = name;
  const json& dtype = value["dtype"];
  check_tensor(dtype.is_string(), "dtype is a string", name, file, dtype.type_name());
  const auto known = dtype_named(dtype.get_ref<const std::string&>());
  check_tensor(known.has_value(), "dtype must be one of the format's", name, file,
               printable(dtype.get_ref<const std::string&>()));
  entry.dtype = *known;

  const json& shape = value["shape"];
  check_tensor(shape.is_array(), "shape is an array", name, file, shape.type_name());
  for (const json& size : shape) {
    entry.shape.push_back(integer(size, name, file));
    check_tensor(entry.shape.back() >= 0, "sizes are not negative", name, file, entry.shape.back());
  }

  const json& offsets = value["data_offsets"];
  check_tensor(offsets.is_array() && offsets.size() == 2, "data_offsets are two integers", name, file,
               offsets.type_name(), " of ", offsets.size());
  entry.begin = integer(offsets[0], name, file);
  entry.end = integer(offsets[1], name, file);
  check_tensor(entry.begin >= 0 && entry.begin <= entry.end, "data_offsets are in order and not negative",
               name, file, entry.begin, " to ", entry.end);
  return entry;
}

std::map<std::string, std::string> parse_metadata(const json& value, std::string_view file) {
  check_value(value.is_object(), "[core] __metadata__ is an object of strings; got ", value.type_name(),
              " in ", file);
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      throw ValueError(concatenate("[core] __metadata__ is an object of strings; got ", text.type_name(),
                                   " for ", printable(key), " in ", file));
    metadata.emplace(key, text.get_ref<const std::string&>());
  }
  return metadata;
}

/// Every byte behind the header belongs to exactly one tensor, and each has as many as its shape says.
void check_layout(const std::vector<TensorEntry>& tensors, int64_t data_bytes, std::string_view file) {
  int64_t expected = 0;
  for (const TensorEntry& entry : tensors) {
    check_tensor(entry.end <= data_bytes, "data_offsets must lie inside the file, which may be cut off",
                 entry.name, file, "end ", entry.end, " of ", data_bytes, " bytes of data");
    check_tensor(entry.begin == expected, "tensors follow each other without holes and overlaps", entry.name,
                 file, "begin ", entry.begin, " where ", expected, " is due");
    const auto bytes = tensor_bytes(entry.dtype, entry.shape);
    check_tensor(bytes.has_value(), "a shape must fill whole bytes, fewer than 2^60", entry.name, file,
                 "a product that does not");
    check_tensor(*bytes == entry.bytes(), "data_offsets must span what shape and dtype need", entry.name,
                 file, entry.bytes(), " bytes where ", *bytes, " are needed");
    expected = entry.end;
  }
  check_value(expected == data_bytes, "[core] tensors must cover the whole file; got ", data_bytes - expected,
              " bytes behind the last one in ", file);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view file_name) {
  const std::string_view text = header_text(file, file_name);
  const json root = parse_json(text, concatenate("the header of ", file_name));
  SafetensorsHeader header;
  header.data_begin = static_cast<int64_t>(kLengthBytes + text.size());
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(value, file_name);
    } else {
      header.tensors.push_back(parse_entry(name, value, file_name));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(header.tensors, static_cast<int64_t>(file.size()) - header.data_begin, file_name);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : name_(path.string()),
      mapping_(path),
      file_(mapping_.bytes()),
      header_(parse_safetensors_header(file_, name_)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) positions_.emplace(header_.tensors[i].name, i);
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> file, std::string name)
    : name_(std::move(name)), file_(file), header_(parse_safetensors_header(file_, name_)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) positions_.emplace(header_.tensors[i].name, i);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto position = positions_.find(name);
  return position == positions_.end() ? nullptr : &header_.tensors[position->second];
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (!entry)
    throw ValueError(concatenate("[core] tensor ", printable(name), " must be in ", name_, "; got none"));
  return *entry;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_.subspan(static_cast<size_t>(header_.data_begin + entry.begin),
                       static_cast<size_t>(entry.bytes()));
}

}  // namespace trireme::core
