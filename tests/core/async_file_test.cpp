#include "trireme/core/async_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "trireme/core/check.h"

namespace trireme::core {
namespace {

using ::testing::AllOf;
using testing::file_error;
using ::testing::HasSubstr;
using testing::kNotPossible;
using testing::possible_in_child;
using testing::refuse_system_call;
using testing::TemporaryDirectory;
using testing::value_error;

constexpr int64_t kMiB = int64_t{1} << 20;

/// Bytes that depend on the seed and on their place.
AlignedMemory pattern(int64_t bytes, uint64_t seed) {
  AlignedMemory memory(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& value : memory.bytes()) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<std::byte>(state >> 56);
  }
  return memory;
}

AlignedMemory read_back(AsyncFile& file, int64_t offset, int64_t bytes) {
  AlignedMemory memory(bytes);
  std::ranges::fill(memory.bytes(), std::byte{0xee});
  file.read(offset, memory.bytes()).wait();
  return memory;
}

bool same(const AlignedMemory& a, const AlignedMemory& b) { return std::ranges::equal(a.bytes(), b.bytes()); }

/// The reason for which the kernel refuses io_uring; empty where it does not.
std::string uring_refusal() {
  const TemporaryDirectory directory;
  try {
    AsyncFile(directory.path(), {.engine = IoEngine::uring});
  } catch (const ValueError& error) {
    return error.what();
  }
  return {};
}

/// A disk of 1 MiB that this process alone sees. False where this user may not have one.
bool mount_small_disk(const std::filesystem::path& path) {
  // Asked before: in a new namespace nobody has a number yet.
  const auto user = std::to_string(::geteuid()), group = std::to_string(::getegid());
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    testing::write_text("/proc/self/uid_map", user + " " + user + " 1");
    testing::write_text("/proc/self/setgroups", "deny");
    testing::write_text("/proc/self/gid_map", group + " " + group + " 1");
  }
  ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") == 0;
}

class AsyncFileTest : public ::testing::TestWithParam<std::pair<IoEngine, bool>> {
 protected:
  void SetUp() override {
    if (options_.engine != IoEngine::uring) return;
    if (const std::string refusal = uring_refusal(); !refusal.empty()) GTEST_SKIP() << refusal;
  }

  AsyncFile open() { return AsyncFile(directory_.path(), options_); }

  const TemporaryDirectory directory_;
  const AsyncFileOptions options_{
      .engine = GetParam().first, .queue_depth = 3, .threads = 3, .direct = GetParam().second};
};

INSTANTIATE_TEST_SUITE_P(Engines, AsyncFileTest,
                         ::testing::Values(std::pair{IoEngine::uring, true},
                                           std::pair{IoEngine::uring, false},
                                           std::pair{IoEngine::threads, true},
                                           std::pair{IoEngine::threads, false}),
                         [](const auto& info) {
                           return std::string(info.param.first == IoEngine::uring ? "uring" : "threads") +
                                  (info.param.second ? "_direct" : "_buffered");
                         });

TEST_P(AsyncFileTest, GivesBackWhatItTook) {
  AsyncFile file = open();
  int64_t offset = 0;
  for (const int64_t bytes : {int64_t{4096}, int64_t{12288}, kMiB, 4 * kMiB, 4 * kMiB + 4096, 13 * kMiB}) {
    const AlignedMemory memory = pattern(bytes, static_cast<uint64_t>(bytes));
    file.write(offset, memory.bytes()).wait();
    EXPECT_TRUE(same(read_back(file, offset, bytes), memory)) << bytes << " bytes at " << offset;
    offset += bytes;
  }
  EXPECT_EQ(file.bytes_written(), offset);
  EXPECT_EQ(file.bytes_read(), offset);
}

TEST_P(AsyncFileTest, TransfersMayBeInFlightTogetherInAnyOrder) {
  constexpr int64_t count = 100, bytes = 5 * 4096;
  AsyncFile file = open();
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  std::vector<AlignedMemory> written, read;
  for (int64_t i = 0; i < count; ++i) {
    written.push_back(pattern(bytes, static_cast<uint64_t>(i)));
    read.emplace_back(bytes);
  }
  std::ranges::shuffle(order, random);
  for (const int64_t i : order) file.write(i * bytes, written[i].bytes());
  file.wait_all();
  std::ranges::shuffle(order, random);
  std::vector<Transfer> transfers(count);
  for (const int64_t i : order) transfers[i] = file.read(i * bytes, read[i].bytes());
  for (int64_t i = count - 1; i >= 0; --i) {
    transfers[i].wait();
    EXPECT_TRUE(transfers[i].is_done());
    EXPECT_TRUE(same(read[i], written[i])) << i;
  }
}

TEST_P(AsyncFileTest, ManyThreadsMayUseIt) {
  AsyncFile file = open();
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&file, t] {
      for (int64_t i = 0; i < 10; ++i) {
        const AlignedMemory memory = pattern(16384, static_cast<uint64_t>(t * 100 + i));
        file.write((t * 10 + i) * 16384, memory.bytes()).wait();
        EXPECT_TRUE(same(read_back(file, (t * 10 + i) * 16384, 16384), memory));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(file.bytes_read(), 4 * 10 * 16384);
}

TEST_P(AsyncFileTest, TakesNewBytesForOldOnes) {
  AsyncFile file = open();
  const AlignedMemory first = pattern(kMiB, 1), second = pattern(8192, 2);
  file.write(0, first.bytes()).wait();
  file.write(4096, second.bytes()).wait();
  AlignedMemory expected = pattern(kMiB, 1);
  std::ranges::copy(second.bytes(), expected.bytes().begin() + 4096);
  EXPECT_TRUE(same(read_back(file, 0, kMiB), expected));
}

TEST_P(AsyncFileTest, TwoFilesOfOneDirectoryAreTwo) {
  AsyncFile first = open(), second = open();
  const AlignedMemory a = pattern(5 * kMiB, 1), b = pattern(5 * kMiB, 2);
  const Transfer writing = first.write(0, a.bytes());
  second.write(0, b.bytes()).wait();
  writing.wait();
  EXPECT_TRUE(same(read_back(first, 0, 5 * kMiB), a));
  EXPECT_TRUE(same(read_back(second, 0, 5 * kMiB), b));
}

TEST_P(AsyncFileTest, RefusesWhatIsNotAligned) {
  AsyncFile file = open();
  AlignedMemory memory(8192);
  const auto error = [&](int64_t offset, size_t begin, size_t bytes) {
    const auto part = memory.bytes().subspan(begin, bytes);
    EXPECT_EQ(value_error([&] { file.read(offset, part); }), value_error([&] { file.write(offset, part); }));
    return value_error([&] { file.read(offset, part); });
  };
  EXPECT_THAT(error(512, 0, 4096), AllOf(HasSubstr("multiples of 4096"), HasSubstr("got offset 512")));
  EXPECT_THAT(error(0, 0, 100), AllOf(HasSubstr("100 bytes"), HasSubstr("use AlignedMemory")));
  EXPECT_THAT(error(0, 8, 4096), HasSubstr("memory at 0x"));
  EXPECT_THAT(error(-4096, 0, 4096), HasSubstr("offset -4096"));
  EXPECT_THAT(error(INT64_MAX - 4095, 0, 4096), HasSubstr("what a file can hold"));
  EXPECT_TRUE(file.write(0, {}).is_done());
  EXPECT_TRUE(file.read(4096, {}).is_done());
  EXPECT_EQ(file.bytes_written() + file.bytes_read(), 0);
}

TEST_P(AsyncFileTest, WhatWasNotWrittenCannotBeRead) {
  AsyncFile file = open();
  const AlignedMemory memory = pattern(8192, 1);
  file.write(0, memory.bytes()).wait();
  EXPECT_THAT(file_error([&] { read_back(file, 4096, 8192); }),
              AllOf(HasSubstr("only what was written"), HasSubstr("a read of 8192 bytes at offset 4096"),
                    HasSubstr("which holds nothing at 8192"), HasSubstr(directory_.path().string())));
  EXPECT_THAT(file_error([&] { read_back(file, 64 * kMiB, 16 * kMiB); }), HasSubstr("only what was written"));
  EXPECT_TRUE(same(read_back(file, 0, 8192), memory));
  EXPECT_EQ(file.bytes_read(), 8192);
}

TEST_P(AsyncFileTest, WhatIsReservedReadsAsZeros) {
  AsyncFile file = open();
  file.reserve(0);
  file.reserve(kMiB);
  const AlignedMemory memory = pattern(4096, 1);
  file.write(kMiB - 4096, memory.bytes()).wait();
  EXPECT_TRUE(same(read_back(file, kMiB - 4096, 4096), memory));
  const AlignedMemory rest = read_back(file, 0, kMiB - 4096);
  EXPECT_TRUE(std::ranges::all_of(rest.bytes(), [](std::byte value) { return value == std::byte{0}; }));
  EXPECT_THAT(value_error([&] { file.reserve(-1); }), HasSubstr("got -1"));
}

TEST_P(AsyncFileTest, TransfersMayBeDroppedAndMayOutliveTheFile) {
  const AlignedMemory memory = pattern(24 * kMiB, 1);
  Transfer transfer;
  {
    AsyncFile file = open();
    file.write(24 * kMiB, memory.bytes());
    transfer = file.write(0, memory.bytes());
  }
  EXPECT_TRUE(transfer.is_done());
  transfer.wait();
}

TEST_P(AsyncFileTest, LeavesNothingBehindWhenKilled) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const auto write_for_ever = [&]() noexcept {
    AsyncFile file = open();
    const AlignedMemory memory = pattern(16 * kMiB, 1);
    for (;;) {
      const Transfer transfer = file.write(0, memory.bytes());
      if (::write(pipe[1], "w", 1) != 1) std::abort();
      transfer.wait();
    }
  };
  const pid_t child = ::fork();
  if (child == 0) write_for_ever();
  ::close(pipe[1]);
  char letter = 0;
  EXPECT_EQ(::read(pipe[0], &letter, 1), 1);  // it writes
  EXPECT_EQ(directory_.entries(), 0u);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(directory_.entries(), 0u);
  ::close(pipe[0]);
}

TEST_P(AsyncFileTest, TellsOfALimitOnTheSizeOfFiles) {
  EXPECT_TRUE(possible_in_child([&] {
    const rlimit limit{kMiB, kMiB};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    AsyncFile file = open();
    const AlignedMemory memory = pattern(6 * kMiB, 1);
    EXPECT_THAT(file_error([&] { file.write(0, memory.bytes()).wait(); }),
                AllOf(HasSubstr("File too large"), HasSubstr("a write of 6291456 bytes at offset 0"),
                      HasSubstr(directory_.path().string()), HasSubstr("ulimit -f")));
    EXPECT_EQ(file.bytes_written(), 0);
    EXPECT_THAT(file_error([&] { file.reserve(2 * kMiB); }),
                AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f")));
    // It has been told: what lies below the limit goes on.
    file.write(0, memory.bytes().first(4096)).wait();
    file.write(2 * kMiB, memory.bytes());
    EXPECT_THAT(file_error([&] { file.wait_all(); }), HasSubstr("at offset 2097152"));
    EXPECT_THAT(file_error([&] { file.write(0, memory.bytes().first(4096)); }),
                HasSubstr("at offset 2097152"));
    EXPECT_THAT(file_error([&] { read_back(file, 0, 4096); }), HasSubstr("File too large"));
    return 0;
  }));
}

TEST_P(AsyncFileTest, TellsOfAFullDisk) {
  const bool possible = possible_in_child([&] {
    if (!mount_small_disk(directory_.path())) return kNotPossible;
    AsyncFile file = open();
    EXPECT_THAT(file_error([&] { file.reserve(2 * kMiB); }),
                AllOf(HasSubstr("No space left"), HasSubstr("2097152 bytes"), HasSubstr("larger disk")));
    const AlignedMemory memory = pattern(6 * kMiB, 1);
    EXPECT_THAT(file_error([&] { file.write(0, memory.bytes()).wait(); }),
                AllOf(HasSubstr("No space left"), HasSubstr("free space there")));
    return 0;
  });
  if (!possible) GTEST_SKIP() << "this user may not mount a small disk to fill";
}

TEST(AsyncFile, TakesThreadsWhereTheKernelRefusesTheRing) {
  const TemporaryDirectory directory;
  // The last one: a ring may be made, and not be used.
  const std::pair<int, int> refusals[] = {{SYS_io_uring_setup, EPERM},
                                          {SYS_io_uring_setup, ENOSYS},
                                          {SYS_io_uring_setup, EACCES},
                                          {SYS_io_uring_setup, ENOMEM},
                                          {SYS_io_uring_enter, EPERM}};
  for (const auto& [call, code] : refusals) {
    const bool possible = possible_in_child([&, call = call, code = code] {
      if (!refuse_system_call(call, code)) return kNotPossible;
      AsyncFile file(directory.path());
      EXPECT_EQ(file.engine(), IoEngine::threads);
      const std::string reason = std::generic_category().message(code);
      EXPECT_THAT(file.description(),
                  HasSubstr(file.is_direct() ? "threads (io_uring: " + reason : "threads, "));
      const AlignedMemory memory = pattern(5 * kMiB, 1);
      file.write(0, memory.bytes()).wait();
      EXPECT_TRUE(same(read_back(file, 0, 5 * kMiB), memory));
      EXPECT_THAT(
          value_error([&] { AsyncFile(directory.path(), {.engine = IoEngine::uring}); }),
          AllOf(HasSubstr("must allow io_uring"), HasSubstr(reason), HasSubstr("automatic or threads")));
      return 0;
    });
    if (!possible) GTEST_SKIP() << "the kernel does not let a process refuse its own system calls (seccomp)";
  }
}

TEST(AsyncFile, TakesTheRingWhereItCanAndIsFast) {
  const TemporaryDirectory directory;
  const AsyncFile file(directory.path());
  const std::string refusal = uring_refusal();
  EXPECT_EQ(file.engine(), refusal.empty() && file.is_direct() ? IoEngine::uring : IoEngine::threads)
      << refusal;
  EXPECT_EQ(AsyncFile(directory.path(), {.direct = false}).engine(), IoEngine::threads);
  EXPECT_THAT(file.description(), HasSubstr(file.is_direct() ? ", direct" : ", through the page cache"));
}

TEST(AsyncFile, RefusesOptionsOutOfRange) {
  const TemporaryDirectory directory;
  const auto error = [&](AsyncFileOptions options) {
    return value_error([&] { AsyncFile(directory.path(), options); });
  };
  EXPECT_THAT(error({.queue_depth = 0}), HasSubstr("queue_depth must be from 1"));
  EXPECT_THAT(error({.threads = 300}), HasSubstr("threads must be from 1 to 256; got 300"));
  EXPECT_THAT(error({.time_limit_seconds = 0}), HasSubstr("time_limit_seconds must be above 0"));
  EXPECT_THAT(value_error([&] { AsyncFile(directory / "none"); }), HasSubstr("No such file"));
}

}  // namespace
}  // namespace trireme::core
