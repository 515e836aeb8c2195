#include "trireme/comm/position.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr std::array kStates{"working", "waiting", "failed", "ended"};

}  // namespace

struct Position::State {
  struct Entry {
    int64_t id;
    std::string what;
    bool is_wait;
  };

  mutable std::mutex mutex;
  std::vector<Entry> entries;  // outermost first
  int64_t next_id = 1;
  Clock::time_point moved = Clock::now();  // when a scope began or ended last
  std::optional<Whereabouts> failure;

  // With the mutex held.
  Whereabouts describe() const {
    Whereabouts now;
    for (const Entry& entry : entries) {
      if (entry.is_wait) {
        now.state = Whereabouts::State::waiting;
        now.collective = entry.what;
      } else {
        now.place += (now.place.empty() ? "" : ", ") + entry.what;
      }
    }
    return now;
  }
};

Position::Position() : state_(std::make_shared<State>()) {}

Position::Scope Position::enter(std::string what) const { return begin(std::move(what), false); }
Position::Scope Position::wait_in(std::string collective) const { return begin(std::move(collective), true); }

Position::Scope Position::begin(std::string what, bool is_wait) const {
  const std::lock_guard lock(state_->mutex);
  state_->failure.reset();
  state_->moved = Clock::now();
  state_->entries.push_back({state_->next_id, std::move(what), is_wait});
  return {state_, state_->next_id++};
}

Whereabouts Position::now() const {
  const std::lock_guard lock(state_->mutex);
  Whereabouts now = state_->failure ? *state_->failure : state_->describe();
  now.seconds = std::chrono::duration<double>(Clock::now() - state_->moved).count();
  return now;
}

Position::Scope::Scope(std::shared_ptr<State> state, int64_t id)
    : state_(std::move(state)), id_(id), exceptions_(std::uncaught_exceptions()) {}

Position::Scope::Scope(Scope&& other) noexcept
    : state_(std::move(other.state_)), id_(other.id_), exceptions_(other.exceptions_) {}

Position::Scope& Position::Scope::operator=(Scope&& other) noexcept {
  leave();
  state_ = std::move(other.state_);
  id_ = other.id_;
  exceptions_ = other.exceptions_;
  return *this;
}

Position::Scope::~Scope() { leave(); }

void Position::Scope::leave() noexcept {
  const auto state = std::exchange(state_, nullptr);
  if (!state) return;
  const std::lock_guard lock(state->mutex);
  const bool fails = std::uncaught_exceptions() > exceptions_;
  if (!fails || !state->failure) state->moved = Clock::now();
  if (fails && !state->failure) {
    state->failure = state->describe();
    state->failure->state = Whereabouts::State::failed;
  }
  std::erase_if(state->entries, [this](const auto& entry) { return entry.id == id_; });
}

std::string to_text(const Heartbeat& heartbeat) {
  const Whereabouts& where = heartbeat.whereabouts;
  const json text{
      {"count", heartbeat.count}, {"time", heartbeat.time},         {"state", kStates[size_t(where.state)]},
      {"place", where.place},     {"collective", where.collective}, {"seconds", where.seconds}};
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<Heartbeat> parse_heartbeat(std::string_view text) {
  try {
    const json parsed = json::parse(text);
    const auto* const state =
        std::find(kStates.begin(), kStates.end(), parsed.at("state").get<std::string>());
    if (state == kStates.end()) return {};
    return Heartbeat{.whereabouts = {.state = Whereabouts::State(state - kStates.begin()),
                                     .place = parsed.at("place"),
                                     .collective = parsed.at("collective"),
                                     .seconds = parsed.at("seconds")},
                     .count = parsed.at("count"),
                     .time = parsed.at("time")};
  } catch (const json::exception&) {
    return {};
  }
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace trireme::comm
