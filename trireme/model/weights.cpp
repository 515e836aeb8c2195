#include "trireme/model/weights.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/normal.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "trireme/core/check.h"
#include "trireme/core/safetensors_writer.h"

namespace trireme::model {
namespace {

using at::Tensor;
using core::check_value;
using core::DType;

// FNV-1a: a fixed function of the name, whatever the platform.
uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t value = 14695981039346656037ULL ^ (seed * 0x9E3779B97F4A7C15ULL);
  for (unsigned char byte : text) value = (value ^ byte) * 1099511628211ULL;
  return value;
}

template <class Visit>
void each_piece(Decoder& decoder, size_t unit, const Visit& visit) {
  for (size_t p = 0; p < decoder.plans()[unit].parameters.size(); ++p)
    for (const auto& piece : decoder.plans()[unit].parameters[p].pieces)
      visit(*decoder.units()[unit], p, decoder.plans()[unit].parameters[p], piece);
}

template <class Visit>
void each_piece(Decoder& decoder, const Visit& visit) {
  for (size_t u = 0; u < decoder.plans().size(); ++u) each_piece(decoder, u, visit);
}

// Unit by unit: what is on a disk is whole in memory while it is written.
template <class Visit>
void write_each_piece(Decoder& decoder, const Visit& visit) {
  for (size_t u = 0; u < decoder.plans().size(); ++u) {
    each_piece(decoder, u, visit);
    decoder.units()[u]->publish();
  }
}

at::ScalarType scalar_type(DType dtype, const std::string& file, const std::string& tensor) {
  switch (dtype) {
    case DType::f64:
      return at::kDouble;
    case DType::f32:
      return at::kFloat;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f16:
      return at::kHalf;
    default:
      break;
  }
  throw core::ValueError(core::concatenate("[model] weights are F64, F32, BF16 or F16; got ",
                                           core::dtype_name(dtype), " for '", tensor, "' in ", file,
                                           "; convert the model first"));
}

// Elements [first, first + count) of a tensor of a file.
Tensor read_elements(const WeightLocation& location, int64_t first, int64_t count) {
  const auto& entry = *location.tensor;
  Tensor values = at::empty({count}, scalar_type(entry.dtype, location.file->name(), entry.name));
  const auto size = size_t(values.element_size());
  const auto bytes = location.file->bytes(entry).subspan(size_t(first) * size, size_t(count) * size);
  std::memcpy(values.data_ptr(), bytes.data(), bytes.size());  // a file's tensors may lie unaligned
  location.file->forget(bytes);
  return values;
}

// Older files hold tables that are computed, and tied models may hold their head all the same.
bool may_be_ignored(const std::string& name, const Config& config) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight");
}

void check_names(Decoder& decoder, const WeightFiles& files) {
  std::set<std::string> known;
  each_piece(decoder, [&](auto&, size_t, auto&, const TensorPiece& piece) { known.insert(piece.name); });
  for (const auto& name : files.names())
    check_value(known.contains(name) || may_be_ignored(name, decoder.config()), "[model] tensor '", name,
                "' of ", files.directory().string(), " has no place in a model of its config.json; got ",
                decoder.config().layers, " layers of ", architecture_name(decoder.config().architecture),
                "; see that both belong together");
}

DType file_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return DType::f64;
    case at::kBFloat16:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

std::string_view config_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

void write_json(const std::filesystem::path& path, const nlohmann::json& json) {
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  check_value(bool(file.flush()), "[model] cannot write ", path.string(), "; see that the disk has room");
}

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"})
    if (std::filesystem::exists(from / name))
      std::filesystem::copy_file(from / name, to / name, std::filesystem::copy_options::overwrite_existing);
}

// A directory that is filled aside and then takes the place of another; removed where it never does.
class DirectoryAside {
 public:
  explicit DirectoryAside(std::filesystem::path target)
      : target_(std::move(target)), aside_(partial_directory(target_)) {
    std::filesystem::remove_all(aside_);
    std::filesystem::create_directories(aside_);
  }
  ~DirectoryAside() {
    std::error_code ignored;
    std::filesystem::remove_all(aside_, ignored);
  }
  DirectoryAside(const DirectoryAside&) = delete;
  DirectoryAside& operator=(const DirectoryAside&) = delete;

  const std::filesystem::path& path() const { return aside_; }
  void put_in_place() {
    const std::filesystem::path old = target_.string() + ".old";
    std::filesystem::remove_all(old);
    if (std::filesystem::exists(target_)) std::filesystem::rename(target_, old);
    std::filesystem::rename(aside_, target_);
    std::filesystem::remove_all(old);
  }

 private:
  std::filesystem::path target_, aside_;
};

// The files of a model directory that is being written, open all at once, since units come in the forward
// pass's order.
class WeightWriters {
 public:
  WeightWriters(const std::filesystem::path& directory, const std::vector<core::TensorSpec>& tensors,
                int64_t max_file_bytes) {
    auto plan = plan_weight_files(tensors, max_file_bytes);
    if (plan.index) write_json(directory / "model.safetensors.index.json", *plan.index);
    for (auto& file : plan.files) {
      auto writer = std::make_shared<core::SafetensorsWriter>(directory / file.name, file.tensors,
                                                              weight_file_metadata());
      for (const auto& tensor : file.tensors) writers_[tensor.name] = writer;
      all_.push_back(std::move(writer));
    }
  }
  void write(const std::string& name, const Tensor& values) {
    Tensor host = values.to(at::kCPU).contiguous();
    writers_.at(name)->write(name, {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  void finish() {
    for (auto& writer : all_) writer->finish();
  }

 private:
  std::vector<std::shared_ptr<core::SafetensorsWriter>> all_;
  std::map<std::string, std::shared_ptr<core::SafetensorsWriter>> writers_;
};

}  // namespace

void initialize_weights(Decoder& decoder, int64_t seed) {
  const double deviation = decoder.config().initializer_range;
  write_each_piece(
      decoder, [&](zero::Unit& unit, size_t index, const ParameterPlan& plan, const TensorPiece& piece) {
        Tensor values;
        if (plan.initial == Initial::normal) {
          auto generator = at::make_generator<at::CPUGeneratorImpl>(hash(piece.name, uint64_t(seed)));
          values = at::normal(0.0, deviation, {piece.count()}, generator, at::TensorOptions(at::kFloat));
        } else {
          values =
              at::full({piece.count()}, plan.initial == Initial::ones ? 1 : 0, at::TensorOptions(at::kFloat));
        }
        unit.write(index, piece.first, values);
      });
}

void load_weights(Decoder& decoder, const WeightFiles& files) {
  check_names(decoder, files);
  write_each_piece(
      decoder, [&](zero::Unit& unit, size_t index, const ParameterPlan&, const TensorPiece& piece) {
        const auto& location = files.at(piece.name);
        check_value(location.tensor->shape == piece.shape, "[model] tensor '", piece.name, "' of ",
                    location.file->name(), " must have the shape that config.json says; got ",
                    at::IntArrayRef(location.tensor->shape), " for ", at::IntArrayRef(piece.shape),
                    "; see that both belong together");
        const auto mine = zero::intersection(unit.stored(index), {piece.first, piece.first + piece.count()});
        if (mine.count() == 0) return;
        unit.write(index, mine.begin, read_elements(location, mine.begin - piece.first, mine.count()));
      });
}

void save_weights(Decoder& decoder, const std::filesystem::path& directory,
                  const std::filesystem::path& source, int64_t max_file_bytes) {
  const bool writes = decoder.units().front()->group().rank() == 0;
  const auto dtype = decoder.units().front()->options().dtype;
  std::unique_ptr<DirectoryAside> aside;
  std::unique_ptr<WeightWriters> writers;
  if (writes) {
    std::vector<core::TensorSpec> tensors;
    each_piece(decoder, [&](auto&, size_t, auto&, const TensorPiece& piece) {
      tensors.push_back({piece.name, file_dtype(dtype), piece.shape});
    });
    aside = std::make_unique<DirectoryAside>(directory);
    writers = std::make_unique<WeightWriters>(aside->path(), tensors, max_file_bytes);
  }
  for (size_t u = 0; u < decoder.units().size(); ++u) {
    zero::Unit& unit = *decoder.units()[u];
    zero::Gathered gathered(unit);
    if (!writes) continue;
    for (size_t p = 0; p < decoder.plans()[u].parameters.size(); ++p)
      for (const auto& piece : decoder.plans()[u].parameters[p].pieces)
        writers->write(piece.name,
                       unit.parameter(p).detach().view({-1}).narrow(0, piece.first, piece.count()));
  }
  if (!writes) return;
  writers->finish();
  write_json(aside->path() / "config.json", exported_config(decoder.config(), config_dtype(dtype)));
  if (!source.empty()) copy_tokenizer(source, aside->path());
  aside->put_in_place();
}

}  // namespace trireme::model
