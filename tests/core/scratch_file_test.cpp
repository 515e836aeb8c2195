#include "trireme/core/scratch_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/child.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trireme::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::possible_in_child;
using testing::refuse_system_call;
using testing::TemporaryDirectory;
using testing::value_error;

constexpr uint32_t kOnlyTemporary = O_TMPFILE & ~O_DIRECTORY;
constexpr uint32_t kOnlyDirect = O_DIRECT;

int64_t size_of(const ScratchFile& file) {
  struct stat status {};
  EXPECT_EQ(::fstat(file.descriptor(), &status), 0);
  return status.st_size;
}

TEST(ScratchFile, IsEmptyAndHasNoName) {
  const TemporaryDirectory directory;
  for (const bool direct : {false, true}) {
    const ScratchFile file(directory.path(), direct);
    EXPECT_EQ(directory.entries(), 0u);
    EXPECT_EQ(size_of(file), 0);
    EXPECT_EQ((::fcntl(file.descriptor(), F_GETFL) & O_DIRECT) != 0, file.is_direct());
    EXPECT_TRUE(direct || !file.is_direct());
  }
}

TEST(ScratchFile, RefusesPlacesWhereNothingCanBeCreated) {
  const TemporaryDirectory directory;
  const auto error = [](const std::filesystem::path& path) {
    return value_error([&] { ScratchFile(path, true); });
  };
  EXPECT_THAT(error(directory / "none"),
              AllOf(HasSubstr("none"), HasSubstr("No such file"), HasSubstr("create it")));
  EXPECT_THAT(error(testing::write_text(directory / "a", "text")), HasSubstr("Not a directory"));
  ASSERT_EQ(::chmod(directory.path().c_str(), 0555), 0);
  EXPECT_TRUE(possible_in_child([&] {
    EXPECT_TRUE(::geteuid() != 0 || ::seteuid(65534) == 0);  // root may write everywhere
    EXPECT_THAT(error(directory.path()), HasSubstr("Permission denied"));
    return 0;
  }));
  EXPECT_EQ(::chmod(directory.path().c_str(), 0755), 0);
}

TEST(ScratchFile, TakesItsNameAwayWhereFilesNeedOne) {
  const TemporaryDirectory directory;
  const bool possible = possible_in_child([&] {
    if (!refuse_system_call(SYS_openat, EOPNOTSUPP, 2, kOnlyTemporary)) return testing::kNotPossible;
    const ScratchFile file(directory.path(), true);
    EXPECT_EQ(directory.entries(), 0u);
    EXPECT_EQ(::pwrite(file.descriptor(), "", 0, 0), 0);
    EXPECT_THAT(value_error([&] { ScratchFile(directory / "none", true); }), HasSubstr("No such file"));
    return 0;
  });
  if (!possible) GTEST_SKIP() << "the kernel does not let a process refuse its own system calls (seccomp)";
}

TEST(ScratchFile, GoesThroughThePageCacheWhereItMust) {
  const TemporaryDirectory directory;
  const bool possible = possible_in_child([&] {
    if (!refuse_system_call(SYS_fcntl, EINVAL, 2, kOnlyDirect)) return testing::kNotPossible;
    EXPECT_FALSE(ScratchFile(directory.path(), true).is_direct());
    return 0;
  });
  if (!possible) GTEST_SKIP() << "the kernel does not let a process refuse its own system calls (seccomp)";
}

TEST(ScratchFile, GoesThroughThePageCacheWhereDirectWritesAreRefused) {
  const TemporaryDirectory directory;
  const bool possible = possible_in_child([&] {
    if (!refuse_system_call(SYS_pwrite64, EINVAL)) return testing::kNotPossible;
    const ScratchFile file(directory.path(), true);
    EXPECT_FALSE(file.is_direct());
    EXPECT_EQ(::fcntl(file.descriptor(), F_GETFL) & O_DIRECT, 0);
    return 0;
  });
  if (!possible) GTEST_SKIP() << "the kernel does not let a process refuse its own system calls (seccomp)";
}

}  // namespace
}  // namespace trireme::core
