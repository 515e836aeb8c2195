// Plays a rank for the launcher's tests.
//
//   fake_rank SCRIPT...              runs those scripts that are for this rank
//   fake_rank --launch N SCRIPT...   runs N such ranks through the launcher, in a process of its own
//
// A SCRIPT is "RANK:action;action..." or "all:action;...". Actions: out TEXT, rewrite TEXT, line TEXT, err
// TEXT, fail CODE TEXT, env NAME, pid, sleep MILLISECONDS, ignore-term, exit CODE, kill SIGNAL.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/error_mark.h"
#include "cli/launcher.h"

namespace {

void act(const std::string& action) {
  std::istringstream words(action);
  std::string verb, rest;
  words >> verb;
  std::getline(words >> std::ws, rest);
  if (verb == "out") std::cout << rest << std::flush;
  if (verb == "rewrite") std::cout << '\r' << rest << std::flush;
  if (verb == "line") std::cout << rest << std::endl;
  if (verb == "err") std::cerr << rest << '\n';
  if (verb == "fail") std::cerr << trireme::cli::error_mark(rest[0] - '0') << rest.substr(2) << '\n';
  if (verb == "env")
    std::cout << rest << '=' << (std::getenv(rest.c_str()) ? std::getenv(rest.c_str()) : "") << std::endl;
  if (verb == "pid") std::cout << "pid " << getpid() << std::endl;
  if (verb == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(rest)));
  if (verb == "ignore-term") signal(SIGTERM, SIG_IGN);
  if (verb == "exit") std::exit(std::stoi(rest));
  if (verb == "kill") kill(getpid(), std::stoi(rest));
}

int play(const std::vector<std::string>& scripts) {
  const std::string rank = std::getenv("RANK");
  for (const std::string& script : scripts) {
    const size_t colon = script.find(':');
    if (script.substr(0, colon) != rank && script.substr(0, colon) != "all") continue;
    std::istringstream actions(script.substr(colon + 1));
    for (std::string action; std::getline(actions, action, ';');) act(action);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  std::vector<std::string> arguments(words + 1, words + count);
  if (arguments.size() < 2 || arguments[0] != "--launch") return play(arguments);
  trireme::cli::LaunchOptions options;
  options.command = {"/proc/self/exe", {"fake_rank"}};
  options.command.arguments.insert(options.command.arguments.end(), arguments.begin() + 2, arguments.end());
  options.ranks = std::stoi(arguments[1]);
  return trireme::cli::launch(options, std::cout, std::cerr);
}
