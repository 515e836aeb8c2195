// A file without a name.
#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme::core {

/// An empty file that only this process can reach and that is gone with it, however it ends. Made without a
/// name where the file system can (O_TMPFILE), else under a unique name that is taken away at once: a process
/// killed between those two steps leaves an empty file.
class ScratchFile {
 public:
  /// With `direct`, reads and writes pass by the page cache (O_DIRECT) where the file system can.
  /// Throws `ValueError` where `directory` is none, or nothing can be created in it.
  ScratchFile(const std::filesystem::path& directory, bool direct);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int descriptor() const { return descriptor_; }
  bool is_direct() const { return direct_; }

 private:
  int descriptor_;
  bool direct_;
};

/// Whether `directory` is one in which a scratch file can be made: makes one.
bool can_hold_scratch_files(const std::filesystem::path& directory);

}  // namespace trireme::core
