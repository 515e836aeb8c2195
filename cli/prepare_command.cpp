// `trireme prepare`: text to a token file.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "trireme/data/prepare.h"

namespace trireme::cli {
namespace {

struct Arguments {
  std::vector<std::string> paths;
  std::string output;
  data::PrepareOptions options;
};

void print_left_out(int64_t count, const char* kind) {
  if (count > 0) std::cout << "; left out " << count << ' ' << kind << (count == 1 ? " file" : " files");
}

int prepare(const Arguments& arguments) {
  const std::filesystem::path output = arguments.output;
  std::error_code ignored;  // writing the file tells
  if (output.has_parent_path()) std::filesystem::create_directories(output.parent_path(), ignored);
  const auto result =
      data::prepare_bytes({arguments.paths.begin(), arguments.paths.end()}, output, arguments.options);
  std::cout << arguments.output << ": " << result.tokens << " tokens of " << result.documents
            << " documents (vocabulary " << data::kByteVocabulary << ": the bytes, and "
            << data::kEndOfDocument << " for a document's end)";
  print_left_out(result.empty, "empty");
  print_left_out(result.binary, "binary");
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
