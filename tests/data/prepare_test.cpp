#include "trireme/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "trireme/data/token_file.h"

namespace trireme::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;
using testing::write_text;

/// Each document of a token file as text, without the end token that it must have.
std::vector<std::string> documents_of(const std::filesystem::path& path) {
  const TokenFile file(path);
  std::vector<std::string> documents;
  for (int64_t i = 0; i < file.documents(); ++i) {
    const auto range = file.document(i);
    std::vector<int64_t> tokens(static_cast<size_t>(range.size()));
    file.read_tokens(range.begin, tokens, kByteVocabulary);
    EXPECT_EQ(tokens.back(), kEndOfDocument);
    std::string text;
    for (size_t t = 0; t + 1 < tokens.size(); ++t) text += static_cast<char>(tokens[t]);
    documents.push_back(text);
  }
  return documents;
}

class PrepareTest : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::filesystem::path output_ = directory_ / "corpus.safetensors";
};

TEST_F(PrepareTest, TakesADirectoryInTheOrderOfItsPaths) {
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"in/b.py", "beta"}, {"in/a/z.py", "\xff\x80\n"}, {"in/a.py", "alpha"}, {"in/c/d/e.py", "deep"}})
    write_text(directory_ / name, text);
  const auto result = prepare_bytes({directory_ / "in"}, output_);
  EXPECT_THAT(documents_of(output_), ElementsAre("alpha", "\xff\x80\n", "beta", "deep"));
  EXPECT_EQ(result.documents, 4);
  EXPECT_EQ(result.tokens, 5 + 3 + 4 + 4 + 4);
}

TEST_F(PrepareTest, KeepsTheOrderOfItsInputs) {
  write_text(directory_ / "in/a", "a");
  write_text(directory_ / "z", "z");
  prepare_bytes({directory_ / "z", directory_ / "in"}, output_);
  EXPECT_THAT(documents_of(output_), ElementsAre("z", "a"));
}

TEST_F(PrepareTest, SkipsWhatIsNoTextAndSaysHowMany) {
  write_text(directory_ / "in/empty", "");
  write_text(directory_ / "in/object.o", std::string("\x7f"
                                                     "ELF\0\0",
                                                     6));
  write_text(directory_ / "in/late", std::string(8192, 'x') + std::string(1, '\0'));
  write_text(directory_ / "in/text", "text");
  std::filesystem::create_symlink("nowhere", directory_ / "in/dangling");
  std::filesystem::create_symlink(".", directory_ / "in/loop");
  const auto result = prepare_bytes({directory_ / "in"}, output_);
  EXPECT_EQ(result.documents, 2);
  EXPECT_EQ(result.empty, 1);
  EXPECT_EQ(result.binary, 1);
  EXPECT_EQ(documents_of(output_).back(), "text");
}

TEST_F(PrepareTest, TakesANamedFileAsItIs) {
  const std::string bytes("a\0b", 3);
  prepare_bytes({write_text(directory_ / "object.o", bytes)}, output_, {{".py"}});
  EXPECT_THAT(documents_of(output_), ElementsAre(bytes));
}

TEST_F(PrepareTest, FiltersDirectoriesBySuffix) {
  for (const char* name : {"in/a.py", "in/b.txt", "in/c.md", "in/py"}) write_text(directory_ / name, name);
  prepare_bytes({directory_ / "in"}, output_, {{".py", ".md"}});
  EXPECT_THAT(documents_of(output_), ElementsAre("in/a.py", "in/c.md"));
}

TEST_F(PrepareTest, NeverReadsItsOwnOutput) {
  write_text(directory_ / "a.txt", "one");
  prepare_bytes({directory_.path()}, output_);
  const auto again = prepare_bytes({directory_.path(), output_}, directory_ / "./corpus.safetensors");
  EXPECT_EQ(again.documents, 1);
  EXPECT_EQ(again.binary, 0);
  EXPECT_THAT(documents_of(output_), ElementsAre("one"));
}

TEST_F(PrepareTest, TakesAFileOnceHoweverOftenItIsGiven) {
  write_text(directory_ / "in/a.txt", "a");
  write_text(directory_ / "in/b.txt", "b");
  std::filesystem::create_directory_symlink("in", directory_ / "link");
  const auto result = prepare_bytes(
      {directory_ / "in/b.txt", directory_ / "in", directory_ / "in/../in/b.txt", directory_ / "link"},
      output_);
  EXPECT_THAT(documents_of(output_), ElementsAre("b", "a"));
  EXPECT_EQ(result.repeated, 4);
}

TEST_F(PrepareTest, TakesAFileAsItIsWhereItIsNamedAsWellAsFound) {
  const std::string bytes("a\0b", 3);
  write_text(directory_ / "in/object.o", bytes);
  const auto result = prepare_bytes({directory_ / "in", directory_ / "in/object.o"}, output_);
  EXPECT_THAT(documents_of(output_), ElementsAre(bytes));
  EXPECT_EQ(result.repeated, 1);
}

TEST_F(PrepareTest, WritesMoreThanItHoldsInMemory) {
  std::string large;
  for (int i = 0; i < 700000; ++i) large += static_cast<char>(1 + i * 31 % 251);
  write_text(directory_ / "in/a", large);
  write_text(directory_ / "in/b", std::string((1 << 18) - 1, 'b'));
  write_text(directory_ / "in/c", "c");
  prepare_bytes({directory_ / "in"}, output_);
  const auto documents = documents_of(output_);
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_EQ(documents[0], large);
  EXPECT_EQ(documents[1].size(), (1u << 18) - 1);
  EXPECT_EQ(documents[2], "c");
}

TEST_F(PrepareTest, NamesInputsThatAreNotThere) {
  EXPECT_THAT(value_error([&] { prepare_bytes({directory_ / "none"}, output_); }),
              AllOf(HasSubstr("none"), HasSubstr("not there")));
  std::filesystem::create_directory(directory_ / "bare");
  EXPECT_THAT(value_error([&] { prepare_bytes({directory_ / "bare"}, output_); }),
              HasSubstr("at least one file"));
  EXPECT_THAT(value_error([&] { prepare_bytes({}, output_); }), HasSubstr("got 0 inputs"));
  EXPECT_THAT(value_error([&] { prepare_bytes({"/dev/null"}, output_); }), HasSubstr("a device or a pipe"));
  EXPECT_THAT(value_error([&] {
                prepare_bytes({write_text(directory_ / "a", "a")}, directory_ / "no/corpus.safetensors");
              }),
              HasSubstr("cannot create"));
  EXPECT_FALSE(std::filesystem::exists(output_));
}

TEST_F(PrepareTest, SaysWhatItFoundWhereThatIsNoText) {
  write_text(directory_ / "in/a.txt", "");
  EXPECT_THAT(value_error([&] { prepare_bytes({directory_ / "in"}, output_); }),
              HasSubstr("got 1 input with 1 empty and 0 binary files and no other"));
  EXPECT_THAT(value_error([&] {
                prepare_bytes({directory_ / "in"}, output_, {{".md", ".rst"}});
              }),
              HasSubstr("got 1 input with no file whose name ends in '.md' or '.rst'"));
  EXPECT_THAT(value_error([&] { prepare_bytes({directory_ / "in"}, output_, {{".txt"}}); }),
              HasSubstr("1 empty and 0 binary files"));
}

TEST_F(PrepareTest, RefusesADirectoryAsItsOutput) {
  write_text(directory_ / "in/a", "a");
  EXPECT_THAT(value_error([&] { prepare_bytes({directory_ / "in"}, directory_ / "in"); }),
              AllOf(HasSubstr("the output must be a file; got"), HasSubstr("/in, a directory")));
  EXPECT_THAT(value_error([&] { prepare_bytes({directory_ / "in"}, directory_ / "new/"); }),
              HasSubstr("the output must be a file"));
}

/// Root reads everything: while it lives, root is somebody else.
class WithoutPrivileges {
 public:
  WithoutPrivileges() : user_(::geteuid()) {
    if (user_ == 0 && ::seteuid(65534) != 0) throw std::runtime_error("root may not become another user");
  }
  ~WithoutPrivileges() {
    if (::seteuid(user_) != 0) std::abort();
  }

 private:
  uid_t user_;
};

TEST_F(PrepareTest, NamesWhatMayNotBeRead) {
  namespace fs = std::filesystem;
  write_text(directory_ / "in/below/secret", "s");
  fs::permissions(directory_.path(), fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  fs::permissions(directory_ / "in/below/secret", fs::perms::none);
  const auto error = [&] {
    const WithoutPrivileges other;
    return value_error([&] { prepare_bytes({directory_ / "in"}, output_); });
  };
  EXPECT_THAT(error(), AllOf(HasSubstr("secret"), HasSubstr("Permission denied")));
  fs::permissions(directory_ / "in/below", fs::perms::none);
  EXPECT_THAT(error(), AllOf(HasSubstr("directories must be readable"), HasSubstr("Permission denied")));
  fs::permissions(directory_ / "in/below", fs::perms::owner_all);
}

}  // namespace
}  // namespace trireme::data
