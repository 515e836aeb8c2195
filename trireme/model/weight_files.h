// The weights of a Hugging Face model directory: one model.safetensors, or several files and an index of
// them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/safetensors.h"
#include "trireme/core/safetensors_writer.h"

namespace trireme::model {

/// Where a tensor lies. `file->bytes(*tensor)` are its bytes. Both live as long as the `WeightFiles`.
struct WeightLocation {
  const core::SafetensorsFile* file = nullptr;
  const core::TensorEntry* tensor = nullptr;
};

/// All tensors of a model directory by name; the files are mapped, not read. Move-only; safe to read from
/// many threads.
class WeightFiles {
 public:
  /// Opens `directory`/model.safetensors, or where there is none what model.safetensors.index.json lists.
  /// Throws `ValueError` where there are no such weights, a file is broken or lacks a tensor that the index
  /// sees in it.
  static WeightFiles open(const std::filesystem::path& directory);

  /// Null where the model has no tensor of that name.
  const WeightLocation* find(std::string_view name) const;

  /// The tensor of that name; throws `ValueError` where there is none.
  const WeightLocation& at(std::string_view name) const;

  /// All names, in alphabetical order.
  std::vector<std::string> names() const;

  const std::filesystem::path& directory() const { return directory_; }

 private:
  explicit WeightFiles(std::filesystem::path directory) : directory_(std::move(directory)) {}
  void open_single(const std::filesystem::path& path);
  void open_indexed(const std::filesystem::path& path);

  std::filesystem::path directory_;
  std::vector<std::unique_ptr<core::SafetensorsFile>> files_;
  std::map<std::string, WeightLocation, std::less<>> locations_;
};

/// The file of each tensor, from an index's JSON. Throws `ValueError` unless its `weight_map` is an object of
/// plain names of safetensors files: nothing that could lead out of the directory. `file_name` is what errors
/// call it.
std::map<std::string, std::string> parse_weight_index(const nlohmann::json& index,
                                                      std::string_view file_name);

/// What goes into which file of a directory to be written.
struct WeightPlan {
  struct File {
    std::string name;
    std::vector<core::TensorSpec> tensors;
  };
  std::vector<File> files;  ///< "model.safetensors", or "model-00001-of-00003.safetensors" and so on
  std::optional<nlohmann::json>
      index;  ///< what to write as model.safetensors.index.json, where files are several
};

/// Shares out tensors, in their order, to files of at most `max_file_bytes` of data; a larger tensor gets a
/// file of its own. Throws `ValueError` for a name twice and shapes that no memory holds.
WeightPlan plan_weight_files(const std::vector<core::TensorSpec>& tensors, int64_t max_file_bytes);

/// The metadata with which Transformers expects its safetensors files to be written.
std::map<std::string, std::string> weight_file_metadata();

/// Where the files of a `directory` are written until all are whole. A rank that is killed meanwhile leaves
/// it behind.
std::filesystem::path partial_directory(const std::filesystem::path& directory);

}  // namespace trireme::model
