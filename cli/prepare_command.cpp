// `trireme prepare`: text to a token file.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "trireme/core/check.h"
#include "trireme/core/text.h"
#include "trireme/data/prepare.h"

namespace trireme::cli {
namespace {

struct Arguments {
  std::vector<std::string> paths;
  std::string output;
  data::PrepareOptions options;
};

void print_left_out(int64_t count, const char* kind, const char* more = "") {
  if (count > 0) std::cout << "; left out " << core::counted(count, kind) << more;
}

/// Makes the directory of the output where it is not there yet.
void make_directory_of(const std::filesystem::path& output) {
  std::error_code failed;
  if (output.has_parent_path()) std::filesystem::create_directories(output.parent_path(), failed);
  core::check_value(!failed, "[cli] --output must lie in a directory that is there or can be made; got ",
                    output.parent_path().string(), ": ", failed.message());
}

int prepare(const Arguments& arguments) {
  const std::filesystem::path output = arguments.output;
  make_directory_of(output);
  const auto result =
      data::prepare_bytes({arguments.paths.begin(), arguments.paths.end()}, output, arguments.options);
  std::cout << arguments.output << ": " << core::counted(result.tokens, "token") << " of "
            << core::counted(result.documents, "document") << " (vocabulary " << data::kByteVocabulary
            << ": the bytes, and " << data::kEndOfDocument << " for a document's end)";
  print_left_out(result.empty, "empty file");
  print_left_out(result.binary, "binary file");
  print_left_out(result.repeated, "file", " given twice");
  std::cout << std::endl;
  return kSuccess;
}

}  // namespace

void add_prepare(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("prepare", "Make a token file from text: a token is a byte");
  command
      ->add_option("PATHS", arguments->paths,
                   "Text files, and directories to search for them; a file is a document")
      ->required();
  command->add_option("-o,--output", arguments->output, "Token file to write (safetensors)")->required();
  command
      ->add_option("--suffix", arguments->options.suffixes,
                   "In directories, take the files whose names end so, as in .py; may be repeated")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  command->footer(
      "Token 256 ends each document. Directories are searched in the order of names.\n\n"
      "Example:\n  trireme prepare docs/ README.md --suffix .md --output corpus.safetensors");
  command->callback([arguments, &chosen] { chosen = [arguments] { return prepare(*arguments); }; });
}

}  // namespace trireme::cli
