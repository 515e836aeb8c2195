#include "cli/parse_error.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <vector>

#include "trireme/core/check.h"

namespace trireme::cli {
namespace {

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string_view meant = core::nearest(word, candidates);
  return meant.empty() ? "" : core::concatenate(" (did you mean ", meant, "?)");
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> subcommand_names(const CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

/// What CLI11 says, in our words where its own are hard to read.
std::string reason(const CLI::ParseError& error) {
  std::string text = error.what();
  const size_t colon = text.find(": ");
  const std::string name = text.substr(0, colon);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    if (text.ends_with(" missing")) return name + " must have a value; it is missing";
    if (text.find("At Most") != text.npos) return name + " must be given once; got it more often";
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) && text.ends_with(" is required"))
    return text.substr(0, text.rfind(" is ")) + " must be given; it is missing";
  if (dynamic_cast<const CLI::ValidationError*>(&error) && colon != text.npos)
    return name + text.substr(colon + 1);  // the checks' texts go on: "must be ..."
  return text;
}

/// A word that no option and no argument takes; a word like an option first, since what stands behind an
/// unknown option is left over as well. Empty where there is none.
std::string left_over(const CLI::App& command) {
  const std::vector<std::string> words = command.remaining();
  const auto option =
      std::find_if(words.begin(), words.end(), [](const auto& word) { return word.starts_with('-'); });
  if (option != words.end()) return option->substr(0, option->find('='));
  return words.empty() ? "" : words.front();
}

std::string rule(const CLI::App& program, const CLI::App& command, const CLI::ParseError& error) {
  const std::string word = left_over(command);
  if (word.starts_with('-'))
    return core::concatenate(word, " is not a known option", suggestion(word, option_names(command)));
  if (&command == &program) {
    const auto names = subcommand_names(program);
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    if (!word.empty())
      return core::concatenate("the command must be one of ", list, "; got ", word, suggestion(word, names));
    if (dynamic_cast<const CLI::RequiredError*>(&error))
      return core::concatenate("a command must be given, one of ", list, "; it is missing");
  }
  if (!word.empty() && dynamic_cast<const CLI::ExtrasError*>(&error))
    return core::concatenate(word, " is one argument too many");
  return reason(error);
}

}  // namespace

std::string describe_parse_error(const CLI::App& program, const CLI::ParseError& error) {
  const auto chosen = program.get_subcommands();
  const CLI::App& command = chosen.empty() ? program : *chosen.front();
  const std::string help = chosen.empty() ? "" : command.get_name() + " ";
  return core::concatenate("[cli] ", rule(program, command, error), "; see `trireme ", help, "--help`");
}

}  // namespace trireme::cli
