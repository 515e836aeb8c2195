// Writing safetensors files tensor by tensor, so that no more than one needs to be in memory.
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

namespace trireme::core {

/// What a file to be written will hold under one name.
struct TensorSpec {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

/// Writes into a temporary file beside `path`; `finish` renames it, so that `path` is either whole or what it
/// was before. In the file, tensors of wider types come first, so that each one lies aligned for its type.
class SafetensorsWriter {
 public:
  /// Writes the header. Throws `ValueError` for a name twice, a bad shape, or a place that cannot be written
  /// to.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// Removes the temporary file unless finished.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Appends to the tensor `name`: all its bytes at once or piece by piece, tensors in any order. Throws
  /// `ValueError` for an unknown name, for more bytes than the tensor has, and where the disk is full.
  void write(std::string_view name, std::span<const std::byte> bytes);

  /// Makes the file durable and visible under its name. Throws `ValueError` where a tensor is not complete.
  void finish();

 private:
  struct Extent {
    int64_t begin;    ///< offset in the file
    int64_t bytes;    ///< of the whole tensor
    int64_t written;  ///< so far
  };

  void open();
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void discard();
  [[noreturn]] void fail(std::string_view action, int code);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::map<std::string, Extent, std::less<>> extents_;
};

}  // namespace trireme::core
