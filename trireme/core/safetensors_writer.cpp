#include "trireme/core/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "trireme/core/check.h"
#include "trireme/core/text.h"

namespace trireme::core {
namespace {

constexpr int kLengthBytes = 8;

using nlohmann::json;

/// One tensor's part of the header's JSON text.
std::string header_entry(const TensorSpec& tensor, int64_t begin, int64_t end) {
  const json value{
      {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  return json(tensor.name).dump() + ":" + value.dump();
}

/// The eight length bytes and the JSON, padded with spaces so that the data behind it is aligned to eight
/// bytes.
std::string header_bytes(std::string text) {
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (int i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return bytes + text;
}

/// A name that no other writer of this machine uses now.
std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  static std::atomic<int64_t> count{0};
  return concatenate(path.string(), ".writing-", ::getpid(), "-", count++);
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), temporary_(temporary_beside(path_)) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return dtype_bits(a.dtype) > dtype_bits(b.dtype);
  });
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + json(metadata).dump();
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    const int64_t begin = offset;
    if (!bytes || __builtin_add_overflow(offset, *bytes, &offset))
      throw ValueError(concatenate("[core] a tensor's shape must be one that memory can hold; got tensor ",
                                   printable(tensor.name), " of ", path_.string()));
    const bool fresh = extents_.emplace(tensor.name, Extent{begin, *bytes, 0}).second;
    if (!fresh || tensor.name == "__metadata__")
      throw ValueError(
          concatenate("[core] tensors of a file have different names, and none is __metadata__; got ",
                      printable(tensor.name), " for ", path_.string()));
    if (header.size() > 1) header += ",";
    header += header_entry(tensor, begin, offset);
  }
  const std::string bytes = header_bytes(header + "}");
  for (auto& [name, extent] : extents_) extent.begin += static_cast<int64_t>(bytes.size());
  open();
  write_at(0, std::as_bytes(std::span(bytes)));
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::open() {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create", errno);
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = extents_.find(name);
  if (found == extents_.end())
    throw ValueError(concatenate("[core] a tensor is announced before it is written; got ", printable(name),
                                 " for ", path_.string()));
  Extent& extent = found->second;
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > extent.bytes - extent.written)
    throw ValueError(concatenate("[core] tensor ", printable(name), " of ", path_.string(), " has ",
                                 extent.bytes, " bytes; got ", size, " more after ", extent.written));
  write_at(extent.begin + extent.written, bytes);
  extent.written += size;
}

void SafetensorsWriter::write_at(int64_t offset, std::span<const std::byte> bytes) {
  check_internal(descriptor_ >= 0, "[core] nothing can be written into a file that is finished");
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

void SafetensorsWriter::finish() {
  for (const auto& [name, extent] : extents_)
    if (extent.written != extent.bytes)
      throw ValueError(concatenate("[core] every tensor must be written whole; got ", extent.written, " of ",
                                   extent.bytes, " bytes of ", printable(name), " for ", path_.string()));
  if (::fsync(descriptor_) != 0) fail("write", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("write", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename into place", errno);
  temporary_.clear();
}

void SafetensorsWriter::discard() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void SafetensorsWriter::fail(std::string_view action, int code) {
  discard();
  const std::string message = concatenate("[core] cannot ", action, " ", path_.string(), ": ",
                                          std::generic_category().message(code), "; nothing was left behind");
  if (code == ENOSPC || code == EDQUOT || code == EFBIG || code == EIO)
    throw FileError(message + "; make room, or choose another disk");
  throw ValueError(message);
}

}  // namespace trireme::core
