// A file's bytes as memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace trireme::core {

/// A regular file mapped read-only for as long as the object lives. Pages come from the disk when they are
/// first read, and ranks on one machine share them. The file must not shrink meanwhile: reading what is gone
/// ends the process (SIGBUS). Safe to read from many threads.
class MappedFile {
 public:
  /// Throws `ValueError` where there is no such file, it is no regular file, or it may not be read.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile() = default;  ///< maps nothing
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  /// The whole file. Valid while this object, or the one it was moved into, lives.
  std::span<const std::byte> bytes() const { return bytes_; }

  /// `part` of `bytes()`, all of which stays readable, is not needed soon: its pages, and neighbours, no
  /// longer count as this process's memory. What is not of this file is left alone.
  void forget(std::span<const std::byte> part) const;

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace trireme::core
