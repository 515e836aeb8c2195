// A read or a write that has been started.
#pragma once

#include <memory>

#include "trireme/core/timeline.h"

namespace trireme::core {

namespace detail {
struct TransferRecord;
}

/// What `AsyncFile::read` and `AsyncFile::write` return. Copies share one state, and any thread may use them,
/// also after the file is gone. Dropping it without waiting stops nothing: the memory of the transfer must
/// outlive the transfer, of which `wait`, `is_done`, or the end of the file tells.
class Transfer {
 public:
  Transfer() = default;  ///< of nothing: done
  explicit Transfer(std::shared_ptr<detail::TransferRecord> record);

  /// Returns when it is done; may be called again. Throws `FileError` where it failed, or is not done within
  /// the file's time limit: then it still goes on, and needs its memory.
  void wait() const;

  /// Done or failed: `wait` will not block.
  bool is_done() const;

  /// From its start to its end; the beginning of the clock where it is of nothing, or not done.
  Interval interval() const;

 private:
  std::shared_ptr<detail::TransferRecord> record_;
};

}  // namespace trireme::core
