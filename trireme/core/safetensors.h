// Reading safetensors files: eight bytes of header length, a JSON header, then the tensors' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/dtype.h"
#include "trireme/core/mapped_file.h"

namespace trireme::core {

/// One tensor of a file. Its bytes are `[begin, end)`, counted from the end of the header; row-major,
/// little-endian.
struct TensorEntry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  int64_t data_begin = 0;                       ///< offset in the file of the first tensor's bytes
  std::vector<TensorEntry> tensors;             ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< the format's `__metadata__`: free text by name
};

/// Parses and checks the header of a whole file. `file_name` is what errors call it. Throws `ValueError`,
/// naming the file, the tensor and the rule, unless: the header lies inside the file, is JSON of the known
/// keys and types, has each name once, and the tensors' bytes follow each other from the first byte behind
/// the header to the last one of the file, as many for each tensor as its shape and type say.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view file_name);

/// A safetensors file, mapped: opening reads the header alone. Move-only; safe to read from many threads.
class SafetensorsFile {
 public:
  /// Maps the file; throws `ValueError` as `MappedFile` and `parse_safetensors_header` do.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// Reads a file that is in memory already. The caller keeps `file` alive.
  SafetensorsFile(std::span<const std::byte> file, std::string name);

  /// The tensor of that name, or null. Valid while this object lives.
  const TensorEntry* find(std::string_view name) const;

  /// The tensor of that name; throws `ValueError` where there is none.
  const TensorEntry& at(std::string_view name) const;

  /// The bytes of an entry of this file. They may lie unaligned: copy with memcpy. Valid while this object
  /// lives.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;

  /// `part` of `bytes` is not needed soon, see `MappedFile::forget`.
  void forget(std::span<const std::byte> part) const { mapping_.forget(part); }

  /// All tensors, in the order of their bytes.
  const std::vector<TensorEntry>& entries() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  /// The path, for error messages.
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  MappedFile mapping_;
  std::span<const std::byte> file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> positions_;
};

}  // namespace trireme::core
