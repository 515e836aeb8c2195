// The subcommands of `trireme`. Each adds itself to the program's command line, and runs when it was chosen.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace trireme::cli {

/// Runs a subcommand after the command line was parsed and gives the exit code. Throws what went wrong.
using Action = std::function<int()>;

/// `trireme train RUN.json`. `chosen` is set when this subcommand was named.
void add_train(CLI::App& program, Action& chosen);

/// `trireme tune RUN.json`.
void add_tune(CLI::App& program, Action& chosen);

/// `trireme plan RUN.json`.
void add_plan(CLI::App& program, Action& chosen);

/// `trireme prepare PATHS... --output FILE`.
void add_prepare(CLI::App& program, Action& chosen);

/// `trireme info`.
void add_info(CLI::App& program, Action& chosen);

}  // namespace trireme::cli
