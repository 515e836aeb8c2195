// What a transfer tells, of an engine that is slow or that the kernel refuses: ends are put into its record
// by hand.
#include "trireme/core/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

#include "tests/support/errors.h"
#include "trireme/core/check.h"
#include "trireme/core/file_activity.h"
#include "trireme/core/io_engine.h"

namespace trireme::core {
namespace {

using detail::Direction;
using ::testing::AllOf;
using testing::file_error;
using ::testing::HasSubstr;
using ::testing::Not;

class TransferTest : public ::testing::Test {
 protected:
  std::shared_ptr<detail::TransferRecord> start(Direction direction, int64_t pieces = 1) {
    auto record = std::make_shared<detail::TransferRecord>(
        detail::TransferRecord{activity_, direction, 4096, 8192, pieces, {}});
    activity_->start(*record);
    return record;
  }

  std::shared_ptr<detail::FileActivity> activity_ =
      std::make_shared<detail::FileActivity>("/scratch", detail::FileActivity::Seconds(0.02));
};

TEST_F(TransferTest, OfNothingIsDone) {
  EXPECT_TRUE(Transfer().is_done());
  Transfer().wait();
}

TEST_F(TransferTest, IsDoneWithItsLastPiece) {
  const auto record = start(Direction::write, 2);
  const Transfer transfer(record);
  activity_->finish_piece(*record, {});
  EXPECT_FALSE(transfer.is_done());
  EXPECT_EQ(activity_->bytes(Direction::write), 0);
  activity_->finish_piece(*record, {});
  EXPECT_TRUE(transfer.is_done());
  transfer.wait();
  EXPECT_EQ(activity_->bytes(Direction::write), 8192);
}

TEST_F(TransferTest, IsWaitedForAsLongAsTheTimeLimit) {
  const auto record = start(Direction::read);
  EXPECT_THAT(file_error([&] { Transfer(record).wait(); }),
              AllOf(HasSubstr("within 0.02 seconds"), HasSubstr("a read of 8192 bytes at offset 4096"),
                    HasSubstr("/scratch"), HasSubstr("raise the time limit")));
  EXPECT_THAT(file_error([&] { activity_->wait_all(); }), HasSubstr("all that was started not done"));
  EXPECT_FALSE(activity_->becomes_idle());
  activity_->finish_piece(*record, {});
  Transfer(record).wait();
  EXPECT_TRUE(activity_->becomes_idle());
}

TEST_F(TransferTest, TellsWhatFailedFirst) {
  const auto record = start(Direction::write, 3);
  activity_->finish_piece(*record, {});
  activity_->finish_piece(*record, detail::Fault{EIO, 8192});
  activity_->finish_piece(*record, detail::Fault{ENOSPC, 4096});
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(
        file_error([&] { Transfer(record).wait(); }),
        AllOf(HasSubstr("Input/output error at offset 8192"),
              HasSubstr("a write of 8192 bytes at offset 4096"), HasSubstr("/scratch"), HasSubstr("dmesg")));
  EXPECT_EQ(activity_->bytes(Direction::write), 0);
}

TEST_F(TransferTest, AFailedWriteIsToldOnceItsWaitHasNot) {
  const auto first = start(Direction::write), second = start(Direction::write);
  activity_->check_writes();
  activity_->finish_piece(*first, detail::Fault{ENOSPC, 4096});
  activity_->finish_piece(*second, detail::Fault{EDQUOT, 4096});
  EXPECT_THAT(file_error([&] { Transfer(first).wait(); }), HasSubstr("No space left"));
  EXPECT_THAT(file_error([&] { Transfer(first).wait(); }), HasSubstr("larger disk"));
  EXPECT_THAT(file_error([&] { activity_->check_writes(); }), HasSubstr("Disk quota"));
  EXPECT_THAT(file_error([&] { activity_->wait_all(); }), HasSubstr("Disk quota"));
  EXPECT_THAT(file_error([&] { Transfer(second).wait(); }), HasSubstr("Disk quota"));
  activity_->check_writes();
}

TEST_F(TransferTest, AFailedReadConcernsItsReaderAlone) {
  const auto record = start(Direction::read);
  activity_->finish_piece(*record, detail::Fault{detail::kEndOfFile, 4096});
  activity_->wait_all();
  EXPECT_THAT(
      file_error([&] { Transfer(record).wait(); }),
      AllOf(HasSubstr("only what was written"), HasSubstr("holds nothing at 4096"), Not(HasSubstr("dmesg"))));
}

TEST_F(TransferTest, PiecesGoOnWhereTheKernelStopped) {
  const auto record = start(Direction::write);
  std::byte memory[8192];
  detail::Piece piece{record, memory, sizeof memory, 4096};
  EXPECT_FALSE(piece.advance(-EINTR));
  EXPECT_FALSE(piece.advance(-EAGAIN));
  EXPECT_FALSE(piece.advance(512));
  EXPECT_EQ(piece.memory, memory + 512);
  EXPECT_EQ(piece.offset, 4096 + 512);
  EXPECT_EQ(piece.bytes, sizeof memory - 512);
  EXPECT_TRUE(piece.advance(sizeof memory - 512));
  Transfer(record).wait();
}

TEST_F(TransferTest, ADiskThatTakesNothingIsFull) {
  const auto record = start(Direction::write);
  std::byte memory[8192];
  EXPECT_TRUE((detail::Piece{record, memory, sizeof memory, 4096}.advance(0)));
  EXPECT_THAT(file_error([&] { Transfer(record).wait(); }), HasSubstr("No space left"));
}

}  // namespace
}  // namespace trireme::core
