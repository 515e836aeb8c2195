#include "trireme/comm/watch.h"

#include <pthread.h>
#include <csignal>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/diagnosis.h"
#include "trireme/core/check.h"

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kDiagnosis = "trireme/diagnosis";          // the text that all ranks give
constexpr const char* kAsking = "trireme/diagnosis/asking";      // how many ranks have asked for it
constexpr const char* kInformed = "trireme/diagnosis/informed";  // and how many have it
constexpr milliseconds kPoll{100};     // between two looks at the store while somebody waits for an answer
constexpr milliseconds kAnswer{2000};  // longest that a store that works takes for anything

/// Starts a thread that no signal is delivered to.
template <class Function>
std::thread start_without_signals(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread thread(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

bool serves_store(const Watch::Options& options) { return options.store_on_rank_0 && options.rank == 0; }

/// What the thread does with the store. Every call may block, and throws once the store is gone.
class Correspondent {
 public:
  Correspondent(Watch::Options options, Position position)
      : options_(std::move(options)), position_(std::move(position)) {}

  void tell() { tell(position_.now()); }

  void tell_end() {
    Whereabouts where = position_.now();
    if (where.state != Whereabouts::State::failed) where = {.state = Whereabouts::State::ended};
    tell(where);
  }

  /// One rank looks around for all that ask: a thousand that did would keep the store from answering any.
  std::string diagnose(const std::string& reason) {
    tell();
    const bool is_first = store().add(kAsking, 1) == 1;
    std::string text = is_first ? "" : await_posted();
    if (text.empty()) {
      const auto sightings = look_around();
      text = comm::diagnose(sightings, size_t(options_.rank), reason, seconds_since_1970());
      text = store().compareSet(kDiagnosis, std::string(), text);
    }
    store().add(kInformed, 1);
    if (serves_store(options_)) stay();
    return text;
  }

  /// When the store answered last.
  Clock::time_point last_answer() const { return Clock::time_point(Clock::duration(last_answer_.load())); }
  void note_answer() { last_answer_.store(Clock::now().time_since_epoch().count()); }

 private:
  c10d::Store& store() { return *options_.store; }

  void tell(const Whereabouts& where) {
    store().set(heartbeat_key(options_.rank),
                to_text({.whereabouts = where, .count = ++count_, .time = seconds_since_1970()}));
  }

  /// Between two looks at the store, which has answered the first.
  void pause() {
    note_answer();
    std::this_thread::sleep_for(kPoll);
    tell();
  }

  /// Empty where the rank that looks around takes longer than it may: it has ended as well.
  std::string await_posted() {
    const auto limit = Clock::now() + options_.patience + kAnswer;
    for (; Clock::now() < limit; pause())
      if (store().check({kDiagnosis})) return store().get_to_str(kDiagnosis);
    return "";
  }

  std::optional<Heartbeat> latest(size_t rank) {
    auto heartbeat = last_heartbeat(store(), int64_t(rank));
    note_answer();
    return heartbeat;
  }

  /// The latest of every rank, once each has shown that it lives or is known to have ended, or time is up.
  std::vector<Sighting> look_around() {
    std::vector<Sighting> sightings(size_t(options_.size));
    for (size_t rank = 0; rank < sightings.size(); ++rank) sightings[rank].last = latest(rank);
    const auto first = sightings;
    sightings[size_t(options_.rank)].is_alive = true;
    const auto is_settled = [](const Sighting& sighting) {
      return sighting.is_alive ||
             (sighting.last && sighting.last->whereabouts.state >= Whereabouts::State::failed);
    };
    const auto limit = Clock::now() + options_.patience;
    while (!std::all_of(sightings.begin(), sightings.end(), is_settled) && Clock::now() < limit) {
      pause();
      for (size_t rank = 0; rank < sightings.size(); ++rank) {
        if (is_settled(sightings[rank])) continue;
        sightings[rank].last = latest(rank);
        sightings[rank].is_alive = sightings[rank].last != first[rank].last;
      }
    }
    return sightings;
  }

  /// Until those that wait have the diagnosis, or time is up.
  void stay() {
    const double recently = seconds_since_1970() - std::chrono::duration<double>(options_.patience).count();
    int64_t waiting = 0;
    for (size_t rank = 0; rank < size_t(options_.size); ++rank) {
      const auto last = latest(rank);
      waiting += last && last->time > recently && last->whereabouts.state == Whereabouts::State::waiting;
    }
    const auto limit = Clock::now() + options_.patience;
    while (store().add(kInformed, 0) < waiting && Clock::now() < limit) pause();
  }

  const Watch::Options options_;
  const Position position_;
  int64_t count_ = 0;
  std::atomic<Clock::rep> last_answer_ = 0;
};

}  // namespace

std::string heartbeat_key(int64_t rank) { return "trireme/position/" + std::to_string(rank); }

std::optional<Heartbeat> last_heartbeat(c10d::Store& store, int64_t rank) {
  const std::string key = heartbeat_key(rank);
  if (!store.check({key})) return {};
  return parse_heartbeat(store.get_to_str(key));
}

/// Owns the thread. What both sides touch outlives either: a thread that hangs in the store is left behind.
class Watch::Thread {
 public:
  Thread(const Options& options, const Position& position)
      : shared_(std::make_shared<Shared>(options, position)),
        thread_(start_without_signals([shared = shared_] { shared->run(); })) {}

  ~Thread() {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->is_ending = true;
    }
    shared_->wake.notify_one();
    const milliseconds limit = hangs_ ? milliseconds(0) : kAnswer;
    if (shared_->ended.get_future().wait_for(limit) == std::future_status::ready)
      thread_.join();
    else
      thread_.detach();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  /// What `Correspondent::diagnose` says, unless the store is gone or hangs.
  std::optional<std::string> ask(const std::string& reason) {
    shared_->correspondent.note_answer();
    std::future<std::string> answer;
    {
      const std::lock_guard lock(shared_->mutex);
      answer = shared_->questions.emplace_back(Question{reason, {}}).answer.get_future();
    }
    shared_->wake.notify_one();
    while (answer.wait_for(kPoll) != std::future_status::ready) {
      hangs_ = Clock::now() > shared_->correspondent.last_answer() + kAnswer;
      if (hangs_) return {};
    }
    try {
      return answer.get();
    } catch (const std::exception&) {
      return {};
    }
  }

 private:
  struct Question {
    std::string reason;
    std::promise<std::string> answer;
  };

  struct Shared {
    Shared(const Options& options, const Position& position)
        : correspondent(options, position), period(options.period) {}

    void run() {
      try {
        correspond();
      } catch (const std::exception&) {  // the store is gone: nobody to tell, nobody to ask
        answer_nothing();
      }
      ended.set_value();
    }

    void correspond() {
      std::unique_lock lock(mutex);
      while (!is_ending) {
        lock.unlock();
        correspondent.tell();
        lock.lock();
        wake.wait_for(lock, period, [this] { return is_ending || !questions.empty(); });
        while (!questions.empty()) {
          Question question = std::move(questions.front());
          questions.pop_front();
          lock.unlock();
          question.answer.set_value(correspondent.diagnose(question.reason));
          lock.lock();
        }
      }
      lock.unlock();
      correspondent.tell_end();
    }

    /// Questions without an answer are told so by their promises' end.
    void answer_nothing() {
      std::unique_lock lock(mutex);
      while (!is_ending) {
        questions.clear();
        wake.wait(lock, [this] { return is_ending || !questions.empty(); });
      }
      questions.clear();
    }

    Correspondent correspondent;
    const milliseconds period;
    std::mutex mutex;
    std::condition_variable wake;
    bool is_ending = false;
    std::deque<Question> questions;
    std::promise<void> ended;
  };

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
  std::atomic<bool> hangs_ = false;
};

Watch::Watch(Options options) : options_(std::move(options)) {
  if (options_.store) thread_ = std::make_unique<Thread>(options_, position_);
}

Watch::~Watch() = default;

std::string Watch::diagnose(const std::string& reason) const {
  if (thread_)
    if (auto text = thread_->ask(reason)) return *std::move(text);
  std::string text = core::concatenate("[comm] ", place_of(position_.now()), " on rank ", options_.rank,
                                       " of ", options_.size, " did not finish: ", reason);
  if (!thread_) return text + "; see which rank ended or waits elsewhere";
  const char* server = options_.store_on_rank_0 ? "rank 0" : "the launcher";
  return text + core::concatenate("; the store, which ", server,
                                  " serves, does not answer either; see whether ", server,
                                  " was stopped or killed");
}

}  // namespace trireme::comm
