#include "trireme/core/transfer.h"

#include <utility>

#include "trireme/core/file_activity.h"

namespace trireme::core {

Transfer::Transfer(std::shared_ptr<detail::TransferRecord> record) : record_(std::move(record)) {}

void Transfer::wait() const {
  if (record_) record_->activity->wait(*record_);
}

bool Transfer::is_done() const { return !record_ || record_->activity->is_done(*record_); }

Interval Transfer::interval() const { return record_ ? record_->activity->interval(*record_) : Interval{}; }

}  // namespace trireme::core
