// What is wrong with a command line, in the form of every other error.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace trireme::cli {

/// "[cli] RULE; got ...; see `trireme COMMAND --help`" for what `program` threw while it parsed a command
/// line; names the option or subcommand that may have been meant.
std::string describe_parse_error(const CLI::App& program, const CLI::ParseError& error);

}  // namespace trireme::cli
