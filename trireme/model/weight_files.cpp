#include "trireme/model/weight_files.h"

#include <cstdio>
#include <set>
#include <system_error>
#include <utility>

#include "trireme/core/check.h"
#include "trireme/core/json.h"
#include "trireme/core/text.h"

namespace trireme::model {
namespace {

using core::concatenate;
using core::ValueError;
using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

/// Says what to do about weights in another format, where there are some.
std::string advice(const fs::path& directory) {
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(directory, unreadable)) {
    const auto suffix = entry.path().extension();
    if (suffix == ".bin" || suffix == ".pt" || suffix == ".pth" || suffix == ".gguf" || suffix == ".h5")
      return concatenate("; convert ", entry.path().filename().string(),
                         " with Transformers: AutoModelForCausalLM.from_pretrained(directory)"
                         ".save_pretrained(other_directory)");
  }
  return "";
}

bool is_plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.size() <= 255 && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

/// "model.safetensors" where there is one file; else with its number, counted from 1, and their count.
std::string planned_name(size_t file, size_t files) {
  if (files == 1) return kSingleName;
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", file + 1, files);
  return name;
}

}  // namespace

WeightFiles WeightFiles::open(const fs::path& directory) {
  std::error_code failed;
  core::check_value(fs::is_directory(directory, failed),
                    "[model] a model is a directory with config.json and weights; got ", directory.string());
  WeightFiles weights(directory);
  if (fs::exists(directory / kSingleName, failed)) {
    weights.open_single(directory / kSingleName);
  } else if (fs::exists(directory / kIndexName, failed)) {
    weights.open_indexed(directory / kIndexName);
  } else {
    throw ValueError(concatenate("[model] a model directory holds ", kSingleName, " or ", kIndexName,
                                 "; got neither in ", directory.string(), advice(directory)));
  }
  return weights;
}

void WeightFiles::open_single(const fs::path& path) {
  files_.push_back(std::make_unique<core::SafetensorsFile>(path));
  for (const auto& entry : files_.back()->entries())
    locations_.emplace(entry.name, WeightLocation{files_.back().get(), &entry});
}

void WeightFiles::open_indexed(const fs::path& path) {
  std::map<std::string, const core::SafetensorsFile*> opened;
  for (const auto& [name, file_name] : parse_weight_index(core::read_json(path), path.string())) {
    auto& file = opened[file_name];
    if (!file) {
      files_.push_back(std::make_unique<core::SafetensorsFile>(directory_ / file_name));
      file = files_.back().get();
    }
    const auto* tensor = file->find(name);
    if (!tensor)
      throw ValueError(concatenate("[model] a file holds the tensors that the index sees in it; got no ",
                                   core::printable(name), " in ", file->name(), ", listed by ",
                                   path.string()));
    locations_.emplace(name, WeightLocation{file, tensor});
  }
}

const WeightLocation* WeightFiles::find(std::string_view name) const {
  const auto found = locations_.find(name);
  return found == locations_.end() ? nullptr : &found->second;
}

const WeightLocation& WeightFiles::at(std::string_view name) const {
  const WeightLocation* location = find(name);
  if (!location)
    throw ValueError(concatenate("[model] the weights must hold tensor ", core::printable(name),
                                 "; got none in ", directory_.string()));
  return *location;
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  names.reserve(locations_.size());
  for (const auto& [name, location] : locations_) names.push_back(name);
  return names;
}

std::map<std::string, std::string> parse_weight_index(const json& index, std::string_view file_name) {
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  core::check_value(map != index.end() && map->is_object() && !map->empty(),
                    "[model] an index of weights has an object `weight_map`; got none in ", file_name);
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>()))
      throw ValueError(concatenate("[model] an index names safetensors files of its own directory; got ",
                                   core::printable(file.dump()), " for ", core::printable(name), " in ",
                                   file_name));
    files.emplace(name, file.get_ref<const std::string&>());
  }
  return files;
}

WeightPlan plan_weight_files(const std::vector<core::TensorSpec>& tensors, int64_t max_file_bytes) {
  core::check_value(max_file_bytes > 0, "[model] a file of weights holds at least one byte; got a limit of ",
                    max_file_bytes);
  WeightPlan plan;
  std::set<std::string_view> names;
  int64_t total = 0;
  int64_t filled = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = core::tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes || __builtin_add_overflow(total, *bytes, &total))
      throw ValueError(concatenate("[model] a tensor's shape must be one that memory can hold; got tensor ",
                                   core::printable(tensor.name)));
    if (!names.insert(tensor.name).second)
      throw ValueError(
          concatenate("[model] each tensor is saved once; got ", core::printable(tensor.name), " twice"));
    if (plan.files.empty() || (filled > 0 && *bytes > max_file_bytes - filled)) {
      plan.files.emplace_back();
      filled = 0;
    }
    plan.files.back().tensors.push_back(tensor);
    filled += *bytes;
  }
  if (plan.files.empty()) plan.files.emplace_back();

  json map = json::object();
  for (size_t i = 0; i < plan.files.size(); ++i) {
    plan.files[i].name = planned_name(i, plan.files.size());
    for (const auto& tensor : plan.files[i].tensors) map[tensor.name] = plan.files[i].name;
  }
  if (plan.files.size() > 1)
    plan.index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  return plan;
}

std::map<std::string, std::string> weight_file_metadata() { return {{"format", "pt"}}; }

std::filesystem::path partial_directory(const std::filesystem::path& directory) {
  return directory.string() + ".partial";
}

}  // namespace trireme::model
