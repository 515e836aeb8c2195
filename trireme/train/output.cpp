#include "trireme/train/output.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "trireme/core/check.h"
#include "trireme/model/weight_files.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecord = "options.json";

std::string reason(int code) { return std::generic_category().message(code); }

void refuse(const fs::path& path, const std::string& why) {
  throw core::ValueError(
      core::concatenate("[options] output must be a directory that a run can write into; got ", path.string(),
                        ": ", why, "; set output to another"));
}

/// What is there already must be of the kind that a run puts there.
void check_entry(const fs::path& path, bool directory) {
  std::error_code missing;
  const auto status = fs::status(path, missing);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status) != directory) refuse(path, directory ? "not a directory" : "a directory");
  if (::access(path.c_str(), W_OK) != 0) refuse(path, reason(errno));
}

}  // namespace

std::string model_directory(const Options& options) { return (fs::path(options.output) / "model").string(); }

void check_output(const Options& options) {
  std::error_code missing;  // what is not there yet is not the model either
  core::check_value(
      options.model.path.empty() || !fs::equivalent(model_directory(options), options.model.path, missing),
      "[options] the trained model must not take the place of the one it starts from; got output ",
      options.output, " and model.path ", options.model.path, "; choose another output");
}

void make_output(const Options& options) {
  const fs::path directory = options.output;
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) refuse(directory, failed.message());
  if (::access(directory.c_str(), W_OK | X_OK) != 0) refuse(directory, reason(errno));
  for (const char* file : {kRecord, "metrics.jsonl"}) check_entry(directory / file, false);
  check_entry(model_directory(options), true);
}

void discard_partial_model(const Options& options) {
  std::error_code ignored;
  fs::remove_all(model::partial_directory(model_directory(options)), ignored);
}

void record_options(const Options& options, int64_t world_size) {
  const fs::path path = fs::path(options.output) / kRecord;
  nlohmann::json record = to_json(options);
  record["train_batch_size"] = train_batch_size(options, world_size);
  errno = 0;
  std::ofstream file(path);
  file << record.dump(2) << '\n';
  core::check_value(bool(file.flush()), "[train] options must be recorded; got ", reason(errno), " for ",
                    path.string(), "; see that the disk has room and the directory may be written to");
}

}  // namespace trireme::train
