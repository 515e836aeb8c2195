#include "trireme/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "trireme/comm/mesh.h"
#include "trireme/comm/texts.h"
#include "trireme/core/check.h"
#include "trireme/core/memory.h"
#include "trireme/core/text.h"
#include "trireme/core/timeline.h"
#include "trireme/data/sampler.h"
#include "trireme/model/weights.h"
#include "trireme/plan/memory_plan.h"
#include "trireme/train/engine.h"
#include "trireme/train/metrics.h"
#include "trireme/train/offload.h"
#include "trireme/train/output.h"
#include "trireme/train/planning.h"
#include "trireme/train/progress.h"
#include "trireme/train/scheduler_options.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

c10::Device choose_device(DeviceChoice choice, const comm::Environment& environment) {
  if (choice == DeviceChoice::cpu || !at::globalContext().hasCUDA()) return at::kCPU;
  const c10::Device device(at::kCUDA, c10::DeviceIndex(environment.local_rank));
  at::accelerator::setDeviceIndex(device.index());
  return device;
}

zero::Options zero_options(const Options& options, c10::Device device) {
  zero::Options zero{
      .stage = zero::Stage(options.zero.stage),
      .dtype = computes_in_bf16(options) ? at::kBFloat16 : at::kFloat,
      .reduction_dtype = options.communication_type == CommunicationType::bf16 ? at::kBFloat16 : at::kFloat,
      .reduction = zero::GradientReduction::sum,
      .device = device,
      .persistence_threshold = options.zero.persistence_threshold,
      .parameters_on = options.zero.parameters.device,
      .optimizer_on = options.zero.optimizer.device};
  if (options.autocast) zero.stored_dtype = at::kFloat;
  return zero;
}

zero::Schedule schedule(const ZeroOptions& options, const comm::Mesh& mesh) {
  zero::Schedule schedule = options.schedule;
  if (options.log_trace_cache_warnings && mesh.world.rank() == 0)  // all ranks see the same
    schedule.on_changed_order = [](const std::string& change) {
      std::cerr << "note: " << change << std::endl;
    };
  return schedule;
}

model::ForwardOptions forward_options(const Options& options, const std::shared_ptr<alst::Keeper>& keeper) {
  model::ForwardOptions forward;
  forward.recompute = recompute(options.checkpoint.policy);
  forward.recompute_every = options.checkpoint.every;
  forward.keeper = keeper;
  forward.mlp_tiles = options.tiling.mlp_count();
  forward.loss_tiles = options.tiling.loss_count();
  forward.loss = options.loss;
  return forward;
}

// The optimizer's groups, in the order that `model::TensorRules` counts them, at a step of the schedule.
std::vector<zero::AdamWOptions> groups(const OptimizerOptions& options, double rate, const Betas& betas) {
  const zero::AdamWOptions common{.learning_rate = rate,
                                  .beta1 = betas.first,
                                  .beta2 = betas.second,
                                  .eps = options.eps,
                                  .weight_decay = options.weight_decay};
  auto all = zero::decayed_and_not(common);
  for (const auto& group : options.groups) {
    auto own = common;
    if (group.lr) own.learning_rate = options.lr > 0 ? rate * (*group.lr / options.lr) : 0;
    if (group.weight_decay) own.weight_decay = *group.weight_decay;
    auto both = zero::decayed_and_not(own);
    if (group.weight_decay) both[1] = own;  // said of all of them
    all.insert(all.end(), both.begin(), both.end());
  }
  return all;
}

// Rows of the token file as the batches of this rank.
class Batches {
 public:
  Batches(const Options& options, const comm::Mesh& mesh, int64_t vocabulary, c10::Device device)
      : options_(options),
        mesh_(mesh),
        file_(options.data.path),
        sampler_(file_,
                 {{options.data.sequence_length, options.data.shuffle, uint64_t(options.seed)}, vocabulary}),
        layout_{options.gradient_accumulation_steps, mesh.data.size(), options.micro_batch_size},
        device_(device) {}

  // The micro-batches of optimizer step `step`, from 0.
  std::vector<sp::SlicedBatch> of_step(int64_t step) {
    std::vector<sp::SlicedBatch> all;
    for (int64_t a = 0; a < options_.gradient_accumulation_steps; ++a) all.push_back(micro_batch(step, a));
    return all;
  }

  const data::TokenFile& file() const { return file_; }
  int64_t rows_in_first_epoch() { return sampler_.rows_in_epoch(0); }
  double padding_share() {
    return 1 - double(file_.token_count()) / double(rows_in_first_epoch() * options_.data.sequence_length);
  }

 private:
  sp::SlicedBatch micro_batch(int64_t step, int64_t accumulation) {
    std::vector<at::Tensor> tokens, labels;
    sp::SequenceBatch batch;
    for (int64_t sample = 0; sample < options_.micro_batch_size; ++sample) {
      auto row = sampler_.row(layout_.row(step, accumulation, mesh_.data.rank(), sample));
      tokens.push_back(at::tensor(row.tokens));
      labels.push_back(at::tensor(row.labels));
      batch.document_lengths.push_back(std::move(row.document_lengths));
    }
    batch.tokens = at::stack(tokens);
    batch.labels = at::stack(labels);
    auto slice = sp::slice_batch(batch, mesh_.sequence.rank(), mesh_.sequence.size());
    slice.tokens = slice.tokens.to(device_);
    slice.labels = slice.labels.to(device_);
    slice.positions = slice.positions.to(device_);
    return slice;
  }

  const Options& options_;
  const comm::Mesh& mesh_;
  data::TokenFile file_;
  data::Sampler sampler_;
  data::BatchLayout layout_;
  c10::Device device_;
};

std::map<std::string, std::map<std::string, int64_t>> bytes_sent(const comm::Mesh& mesh) {
  std::map<std::string, std::map<std::string, int64_t>> sent;
  for (const comm::Group* group : {&mesh.world, &mesh.sequence, &mesh.data})
    for (size_t c = 0; c < comm::kCollectives; ++c) {
      const auto collective = comm::Collective(c);
      if (const int64_t bytes = group->traffic().bytes(collective); bytes > 0)
        sent[std::string(comm::name_of(collective))][group->name()] = bytes;
    }
  return sent;
}

// What was sent since `before`.
std::map<std::string, std::map<std::string, int64_t>> difference(
    std::map<std::string, std::map<std::string, int64_t>> now,
    const std::map<std::string, std::map<std::string, int64_t>>& before) {
  for (const auto& [collective, groups] : before)
    for (const auto& [group, bytes] : groups) now[collective][group] -= bytes;
  return now;
}

int64_t largest(const comm::Mesh& mesh, int64_t bytes, const char* purpose) {
  at::Tensor most = at::tensor(bytes);
  return mesh.world.all_reduce(most, purpose, comm::Reduction::max).item<int64_t>();
}

// Of the rank that has most, in bytes.
struct ExpectedMemory {
  int64_t start;    // before the model is made; 0 on an accelerator, whose allocator has given nothing yet
  int64_t planned;  // at the peak
};

ExpectedMemory expected_memory(const Options& options, const model::Config& config, const comm::Mesh& mesh,
                               c10::Device device) {
  const int64_t start =
      largest(mesh, device.is_cpu() ? core::resident_bytes() : 0, "the memory before the model");
  const auto setting =
      plan_setting(options, config, mesh.world.size(), device.is_cpu(), at::get_num_threads());
  return {.start = start, .planned = start + plan::plan_memory(setting).device.total()};
}

int64_t parameter_count(const model::Decoder& decoder) {
  int64_t count = 0;
  for (const auto* unit : decoder.units()) count += unit->numel();
  return count;
}

// Padding costs what tokens cost, attention aside.
std::string padding_note(double share) {
  if (share <= 0.5) return "";
  return "note       rows are mostly padding; a data.sequence_length nearer to the documents', or "
         "data.shuffle, "
         "wastes less\n";
}

std::string offload_note(const Options& options, c10::Device device) {
  if (!device.is_cpu() || options.checkpoint.offload.device != core::Residence::host) return "";
  return "note       activation_checkpointing.offload to cpu moves nothing: the CPU computes, and what "
         "checkpoints keep is in its memory\n";
}

std::string describe(const Options& options, const comm::Environment& environment,
                     const model::Decoder& decoder, Batches& batches, const comm::Mesh& mesh,
                     c10::Device device) {
  return core::concatenate(
      "model      ", model::architecture_name(decoder.config().architecture), ", ",
      format_count(double(parameter_count(decoder))), " parameters, ",
      computes_in_bf16(options) ? "bf16" : "fp32",
      options.model.path.empty() ? ", from scratch" : ", from " + options.model.path, "\ndata       ",
      options.data.path, ": ", core::counted(batches.file().documents(), "document"), ", ",
      format_count(double(batches.file().token_count())), " tokens, ", batches.rows_in_first_epoch(),
      " rows of ", options.data.sequence_length, " an epoch, ", std::lround(100 * batches.padding_share()),
      " % padding", "\nranks      ", mesh.world.size(), " (", environment.origin, "): sequence parallel ",
      mesh.sequence.size(), ", data parallel ", mesh.data.size(), ", ZeRO stage ", options.zero.stage,
      "\noutput     ", options.output, "\n", padding_note(batches.padding_share()),
      offload_note(options, device));
}

// What rank 0 tells the user.
class Reporter {
 public:
  Reporter(const Options& options, const std::string& description)
      : metrics_((std::filesystem::path(options.output) / "metrics.jsonl").string()),
        progress_(std::cout,
                  progress_style([](const char* name) { return std::getenv(name); }, isatty(STDOUT_FILENO)),
                  options.steps) {
    std::cout << description;
    if (const auto note = warmup_note(options.scheduler, options.steps); !note.empty())
      std::cout << note << '\n';
    std::cout << std::flush;
  }
  void report(const StepReport& step) {
    if (step.tokens == 0 && !told_of_no_tokens_) {
      std::cerr << "note: no token of step " << step.step
                << " counts in the loss: documents of one token, or a loss_mask of zeros, teach nothing"
                << std::endl;
      told_of_no_tokens_ = true;
    }
    metrics_.write(step);
    progress_.show(step);
    last_ = step;
  }
  void finish() {
    progress_.finish();
    std::cout << "memory     peak " << format_bytes(last_.peak_memory_bytes) << " a rank; planned "
              << format_bytes(last_.planned_memory_bytes);
    if (last_.start_memory_bytes > 0)
      std::cout << ", of which " << format_bytes(last_.start_memory_bytes) << " before the model";
    std::cout << '\n';
  }

 private:
  MetricsWriter metrics_;
  Progress progress_;
  StepReport last_;
  bool told_of_no_tokens_ = false;
};

// What this rank has moved so far; a step's report holds what was added.
struct Moved {
  zero::Coordinator::Statistics gathers;
  int64_t read, written;
};

Moved moved(model::Decoder& decoder, const Offload& offload) {
  return {decoder.coordinator().statistics(), offload.bytes_read(), offload.bytes_written()};
}

void add_moved(const Moved& before, const Moved& after, StepReport& report) {
  report.gathered_elements = after.gathers.gathered_elements - before.gathers.gathered_elements;
  report.hidden_elements = after.gathers.hidden_elements - before.gathers.hidden_elements;
  report.disk_bytes_read = after.read - before.read;
  report.disk_bytes_written = after.written - before.written;
}

void take_steps(const Options& options, const comm::Mesh& mesh, model::Decoder& decoder,
                const Offload& offload, Engine& engine, Batches& batches, c10::Device device,
                const ExpectedMemory& expected, Reporter* reporter) {
  for (int64_t step = 0; step < options.steps; ++step) {
    const auto here = mesh.world.position().enter(core::concatenate("step ", step + 1));
    const auto start = Clock::now();
    const auto sent_before = bytes_sent(mesh);
    const auto moved_before = moved(decoder, offload);
    const auto beta = betas(options.scheduler, step, options.optimizer.betas);
    const double rate = learning_rate(options.scheduler, step);
    const auto result = engine.step(batches.of_step(step), groups(options.optimizer, rate, beta));
    const auto sent = difference(bytes_sent(mesh), sent_before);
    const int64_t peak = largest(mesh, core::peak_memory_bytes(device), "the peak memory");
    if (!reporter) continue;
    StepReport report{.step = step + 1,
                      .loss = result.loss,
                      .grad_norm = result.gradient_norm,
                      .learning_rate = rate,
                      .tokens = result.targets,
                      .step_seconds = std::chrono::duration<double>(Clock::now() - start).count(),
                      .peak_memory_bytes = peak,
                      .start_memory_bytes = expected.start,
                      .planned_memory_bytes = expected.planned,
                      .bytes_sent = sent};
    add_moved(moved_before, moved(decoder, offload), report);
    reporter->report(report);
  }
}

// Before the run: where its timeline is to go.
void check_timeline(const std::string& path) {
  if (path.empty()) return;
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  core::check_value((folder.empty() || std::filesystem::is_directory(folder, ignored)) &&
                        !std::filesystem::is_directory(path, ignored),
                    "[train] --timeline must name a file in a directory that exists; got ", path);
}

// Ranks left the mesh's making at about the same time: that is when their clocks are set to 0.
void collect_timeline(const core::Timeline& events, Clock::time_point origin, const comm::Group& world,
                      const std::string& path) {
  const auto lines =
      comm::all_gather_texts(events.to_json_lines(world.rank(), origin), world, "the timeline");
  if (world.rank() == 0) core::write_timeline(path, lines);
}

}  // namespace

void check_device(const Options& options) {
  core::check_value(
      options.device != DeviceChoice::cuda || at::globalContext().hasCUDA(),
      "[train] device \"cuda\" needs a CUDA build of torch and a "
      "device that it sees; got no such device; run `trireme info`, or set \"device\" to \"cpu\"");
}

void train(const Options& options, const comm::Environment& environment, const std::string& timeline) {
  check_world(options, environment.world_size);
  check_timeline(timeline);
  check_output(options);
  check_device(options);
  if (environment.rank == 0) make_output(options);
  const auto device = choose_device(options.device, environment);
  const auto config = model_config(options.model);
  const auto timeout = std::chrono::milliseconds(int64_t(options.timeout_seconds * 1000));
  const auto connection = comm::Connection::open(environment, device, timeout);
  const auto mesh = comm::Mesh::create(connection, options.sequence_parallel_size);
  auto here = mesh.world.position().enter("start");
  const auto events = timeline.empty() ? nullptr : std::make_shared<core::Timeline>();
  const auto origin = Clock::now();
  const auto expected = expected_memory(options, config, mesh, device);
  const Offload offload(options, device, events);
  model::Decoder decoder(config, zero_options(options, device), mesh,
                         {.schedule = schedule(options.zero, mesh),
                          .rules = tensor_rules(options),
                          .timeline = events,
                          .memory = offload.memory()});
  if (options.model.path.empty())
    model::initialize_weights(decoder, options.seed);
  else
    model::load_weights(decoder, model::WeightFiles::open(options.model.path));
  Batches batches(options, mesh, config.vocabulary_size, device);
  Engine engine(decoder, mesh, forward_options(options, offload.keeper()), options.gradient_clipping,
                offload.streaming(), events);

  std::unique_ptr<Reporter> reporter;
  if (mesh.world.rank() == 0) {
    record_options(options, environment.world_size);
    reporter =
        std::make_unique<Reporter>(options, describe(options, environment, decoder, batches, mesh, device));
  }
  here = {};
  take_steps(options, mesh, decoder, offload, engine, batches, device, expected, reporter.get());
  if (events) collect_timeline(*events, origin, mesh.world, timeline);
  here = mesh.world.position().enter("save");
  const auto saved = model_directory(options);
  model::save_weights(decoder, saved, options.model.path);
  mesh.world.barrier("the end of the run");
  if (!reporter) return;
  reporter->finish();
  std::cout << "saved      " << saved << " (Hugging Face format), " << options.output << "/metrics.jsonl\n"
            << std::flush;
}

}  // namespace trireme::train
