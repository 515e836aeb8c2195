#include "trireme/core/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/python.h"
#include "trireme/core/safetensors.h"

namespace trireme::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;
using testing::write_text;

/// While it lives, no file of this process may grow beyond `bytes`: what a full disk looks like to a writer.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    std::signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_{};
  void (*previous_handler_)(int) = nullptr;
};

std::vector<std::byte> counting_bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  const auto a = counting_bytes(5), b = counting_bytes(24), s = counting_bytes(2);
  SafetensorsWriter writer(path,
                           {{"a", DType::u8, {5}},
                            {"b", DType::i64, {3, 1}},
                            {"s", DType::bf16, {}},
                            {"none", DType::f32, {0, 4}}},
                           {{"format", "pt"}, {"quote", "\"\n"}});
  writer.write("a", std::span(a).first(2));
  writer.write("b", b);
  writer.write("a", std::span(a).subspan(2));
  writer.write("s", s);
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();
  EXPECT_EQ(directory.entries(), 1u);

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("quote"), "\"\n");
  EXPECT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(std::memcmp(file.bytes(file.at("a")).data(), a.data(), a.size()), 0);
  EXPECT_EQ(std::memcmp(file.bytes(file.at("b")).data(), b.data(), b.size()), 0);
  EXPECT_EQ(file.at("b").shape, (std::vector<int64_t>{3, 1}));
  EXPECT_TRUE(file.at("s").shape.empty());
  for (const auto& entry : file.entries())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.bytes(entry).data()) % (dtype_bits(entry.dtype) / 8), 0u)
        << entry.name;
}

TEST(SafetensorsWriter, ReplacesAnOlderFileOnlyWhenFinished) {
  const TemporaryDirectory directory;
  const auto path = write_text(directory / "x.safetensors", "old");
  {
    SafetensorsWriter writer(path, {{"a", DType::u8, {5}}});
    EXPECT_THAT(value_error([&] { writer.finish(); }),
                AllOf(HasSubstr("written whole"), HasSubstr("0 of 5")));
  }
  EXPECT_EQ(testing::read_text(path), "old");
  EXPECT_EQ(directory.entries(), 1u);
  SafetensorsWriter(path, {}).finish();
  EXPECT_TRUE(SafetensorsFile(path).entries().empty());
}

TEST(SafetensorsWriter, RefusesWhatDoesNotFit) {
  const TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  const auto bytes = counting_bytes(6);
  SafetensorsWriter writer(path, {{"a", DType::u8, {5}}});
  EXPECT_THAT(value_error([&] { writer.write("a", bytes); }), HasSubstr("has 5 bytes; got 6 more after 0"));
  EXPECT_THAT(value_error([&] { writer.write("b", bytes); }), HasSubstr("'b'"));
  const auto open = [&](std::vector<TensorSpec> specs) { SafetensorsWriter(path, std::move(specs)); };
  EXPECT_THAT(value_error([&] { open({{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}); }), HasSubstr("'a'"));
  EXPECT_THAT(value_error([&] {
                open({{"__metadata__", DType::u8, {1}}});
              }),
              HasSubstr("none is __metadata__"));
  EXPECT_THAT(value_error([&] { open({{"a", DType::u8, {-1}}}); }), HasSubstr("memory can hold"));
  EXPECT_THAT(value_error([&] {
                const std::vector<int64_t> huge{int64_t{1} << 59};
                std::vector<TensorSpec> specs;
                for (int i = 0; i < 32; ++i) specs.push_back({std::to_string(i), DType::u8, huge});
                open(std::move(specs));
              }),
              HasSubstr("memory can hold"));
}

TEST(SafetensorsWriter, LeavesNothingBehindOnAFullDisk) {
  const TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  const auto bytes = counting_bytes(1 << 16);
  {
    const FileSizeLimit limit(20000);
    SafetensorsWriter writer(path, {{"a", DType::u8, {1 << 16}}});
    EXPECT_THAT(testing::file_error([&] { writer.write("a", bytes); }),  // no mistake of the user's
                AllOf(HasSubstr("cannot write"), HasSubstr("x.safetensors"), HasSubstr("File too large")));
  }
  EXPECT_EQ(directory.entries(), 0u);
}

TEST(SafetensorsWriter, NamesAPlaceThatIsNotThere) {
  const TemporaryDirectory directory;
  EXPECT_THAT(value_error([&] { SafetensorsWriter(directory / "no/x.safetensors", {}); }),
              AllOf(HasSubstr("cannot create"), HasSubstr("No such file")));
  std::filesystem::create_directory(directory / "taken");
  SafetensorsWriter writer(directory / "taken", {});
  EXPECT_THAT(value_error([&] { writer.finish(); }), HasSubstr("rename into place"));
  EXPECT_EQ(directory.entries(), 1u);
}

TEST(SafetensorsWriter, SatisfiesThePythonLibrary) {
  const TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  const std::vector<uint8_t> bytes{1, 0, 255};
  const std::vector<float> floats{0.5f, -2.0f, 3.25f, 0.0f, 1.0f, 7.0f};
  const std::vector<int64_t> longs{int64_t{-1} << 40};
  const std::vector<uint16_t> halves{0x3f80, 0xc000};  // 1 and -2 in bfloat16
  SafetensorsWriter writer(path,
                           {{"bytes", DType::u8, {3}},
                            {"floats", DType::f32, {2, 3}},
                            {"longs", DType::i64, {}},
                            {"halves", DType::bf16, {2}}},
                           {{"format", "pt"}});
  writer.write("halves", std::as_bytes(std::span(halves)));
  writer.write("bytes", std::as_bytes(std::span(bytes)));
  writer.write("floats", std::as_bytes(std::span(floats)));
  writer.write("longs", std::as_bytes(std::span(longs)));
  writer.finish();
  const auto result = testing::run_python("safetensors_check.py", path.string());
  EXPECT_EQ(result.status, 0) << result.output;
}

}  // namespace
}  // namespace trireme::core
