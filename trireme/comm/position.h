// Where a rank is in its work: what another rank that waits for it in vain wants to know.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::comm {

/// Where a rank was, and since when.
struct Whereabouts {
  enum class State {
    working,  ///< anywhere but in a collective
    waiting,  ///< in `collective`
    failed,   ///< an error took it out of `place`, and out of `collective` if there is one
    ended     ///< it has left the run, and told of no failure
  };
  State state = State::working;
  std::string place;       ///< "step 12, backward"; empty outside of all scopes
  std::string collective;  ///< "all_gather of group 'world' for gather of unit 'layers.3'"; may be empty
  double seconds = 0;      ///< since it came there

  bool operator==(const Whereabouts&) const = default;
};

/// One sign of life of a rank.
struct Heartbeat {
  Whereabouts whereabouts;
  int64_t count = 0;  ///< of this rank's heartbeats: it lives as long as this grows
  double time = 0;    ///< seconds since 1970 by its machine's clock

  bool operator==(const Heartbeat&) const = default;
};

/// One line of JSON, and back; nothing where `text` is not what `to_text` makes.
std::string to_text(const Heartbeat& heartbeat);
std::optional<Heartbeat> parse_heartbeat(std::string_view text);

/// Seconds since 1970 by this machine's clock.
double seconds_since_1970();

/// What this rank does now, kept by scopes. A handle: copies share one position. Thread-safe.
class Position {
  struct State;

 public:
  Position();

  /// As long as it lives, the rank is where it says. Scopes nest, but may end in any order. One that an
  /// exception ends leaves word of a failure, until the next scope begins.
  class [[nodiscard]] Scope {
   public:
    Scope() = default;  ///< nowhere
    Scope(Scope&& other) noexcept;
    Scope& operator=(Scope&& other) noexcept;
    ~Scope();

   private:
    friend class Position;
    Scope(std::shared_ptr<State> state, int64_t id);
    void leave() noexcept;

    std::shared_ptr<State> state_;
    int64_t id_ = 0;
    int exceptions_ = 0;  // on their way when the scope began
  };

  /// `what` is a word or two, such as "step 12", "backward" or "unit 'layers.3'".
  Scope enter(std::string what) const;
  /// The rank waits in a collective, such as "barrier of group 'world' for the end of the run".
  Scope wait_in(std::string collective) const;

  Whereabouts now() const;

 private:
  Scope begin(std::string what, bool is_wait) const;

  std::shared_ptr<State> state_;
};

}  // namespace trireme::comm
