#include "trireme/core/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trireme::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;
using testing::write_text;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Of this process.
int64_t resident_bytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(MappedFile, ShowsTheBytes) {
  const TemporaryDirectory directory;
  const MappedFile file(write_text(directory / "a", "hello"));
  EXPECT_EQ(file.size(), 5);
  EXPECT_EQ(text_of(file), "hello");
}

TEST(MappedFile, ForgetsWhatItShowsAllTheSame) {
  constexpr size_t kSize = size_t{16} << 20;
  const TemporaryDirectory directory;
  std::string text(kSize, ' ');
  for (size_t i = 0; i < kSize; ++i) text[i] = char('a' + i % 23);
  const MappedFile file(write_text(directory / "a", text));
  ASSERT_EQ(text_of(file), text);
  const int64_t before = resident_bytes();
  file.forget(file.bytes().subspan(100, kSize - 200));
  EXPECT_LT(resident_bytes(), before - int64_t(kSize) * 9 / 10);
  EXPECT_EQ(text_of(file), text);
  file.forget(std::as_bytes(std::span(text)));  // not of this file
  file.forget({});
  EXPECT_EQ(text[kSize - 1], char('a' + (kSize - 1) % 23));
}

TEST(MappedFile, MovesWithItsBytes) {
  const TemporaryDirectory directory;
  MappedFile first(write_text(directory / "a", "first"));
  MappedFile second(std::move(first));
  EXPECT_EQ(text_of(second), "first");
  EXPECT_EQ(first.size(), 0);
  second = MappedFile(write_text(directory / "b", "second"));
  EXPECT_EQ(text_of(second), "second");
}

TEST(MappedFile, TakesAnEmptyFile) {
  const TemporaryDirectory directory;
  EXPECT_EQ(MappedFile(write_text(directory / "a", "")).size(), 0);
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TemporaryDirectory directory;
  EXPECT_THAT(value_error([&] { MappedFile(directory / "none"); }),
              AllOf(HasSubstr("none"), HasSubstr("No such file")));
  EXPECT_THAT(value_error([&] { MappedFile{directory.path()}; }), HasSubstr("a directory"));
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(value_error([&] { MappedFile(directory / "pipe"); }), HasSubstr("a device or a pipe"));
}

}  // namespace
}  // namespace trireme::core
