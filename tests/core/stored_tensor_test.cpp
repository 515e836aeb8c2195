#include "trireme/core/stored_tensor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/files.h"

namespace trireme::core {
namespace {

using at::Tensor;
using testing::TemporaryDirectory;

constexpr int64_t kStep = StoredTensor::kRangeStep;

class OnDisk : public ::testing::Test {
 protected:
  std::shared_ptr<DiskStore> store(int64_t write_behind_bytes, IoEngine engine = IoEngine::automatic) {
    return std::make_shared<DiskStore>(DiskStoreOptions{.directory = directory_.path(),
                                                        .file = {.engine = engine},
                                                        .write_behind_bytes = write_behind_bytes},
                                       pool_, timeline_);
  }
  TemporaryDirectory directory_;
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
  std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
};

TEST_F(OnDisk, GivesBackWhatWasWritten) {
  for (auto engine : {IoEngine::automatic, IoEngine::threads})
    for (int64_t behind : {int64_t{0}, int64_t{1} << 30})
      for (auto dtype : {at::kFloat, at::kBFloat16, at::kDouble})
        for (int64_t numel : {int64_t{1}, int64_t{513}, kStep, 3 * kStep + 17, int64_t{1'000'000}}) {
          const auto disk = store(behind, engine);
          StoredTensor other(100, at::kFloat, disk, "another"), tensor(numel, dtype, disk, "one");
          other.write(0, at::full({100}, 7));
          EXPECT_TRUE(tensor.read().wait().eq(0).all().item<bool>()) << "before any write";
          const Tensor values = at::arange(numel).remainder(200);
          for (int64_t first = 0; first < numel; first += kStep)
            tensor.write(first, values.narrow(0, first, std::min(kStep, numel - first)));
          for (int round = 0; round < 2; ++round) {
            Tensor found = tensor.read().wait();
            EXPECT_TRUE(at::equal(found, values.to(dtype)));
            tensor.give_back(found);
          }
          EXPECT_TRUE(other.read().wait().eq(7).all().item<bool>());
        }
}

TEST_F(OnDisk, AChangedRangeIsReadAgainAsItWasChanged) {
  const auto disk = store(1 << 30);
  StoredTensor tensor(4 * kStep, at::kFloat, disk, "states");
  tensor.write(0, at::arange(4 * kStep));
  for (int64_t first : {int64_t{0}, 2 * kStep}) {  // read right after a write that goes on
    Tensor part = tensor.read(first, kStep).wait();
    part.add_(1);
    tensor.write_back(first, part);
    EXPECT_TRUE(
        at::equal(tensor.read(first, kStep).wait(), at::arange(kStep, at::kFloat) + double(first) + 1));
  }
  EXPECT_TRUE(at::equal(tensor.read(kStep, kStep).wait(), at::arange(kStep, at::kFloat) + double(kStep)));
}

TEST_F(OnDisk, IsZeroAfterClearWithoutBeingRead) {
  const auto disk = store(0);
  StoredTensor tensor(kStep, at::kFloat, disk, "states");
  tensor.write(0, at::ones({kStep}));
  tensor.clear();
  const int64_t before = disk->bytes_read();
  EXPECT_TRUE(tensor.read().wait().eq(0).all().item<bool>());
  EXPECT_EQ(disk->bytes_read(), before);
}

TEST_F(OnDisk, CountsBytesAndTellsTheTimeline) {
  const auto disk = store(0);
  StoredTensor tensor(2 * kStep, at::kFloat, disk, "the masters");
  tensor.write(0, at::ones({2 * kStep}));
  tensor.read(kStep, kStep).wait();
  EXPECT_EQ(disk->bytes_written(), 2 * kStep * 4);
  EXPECT_EQ(disk->bytes_read(), kStep * 4);
  ASSERT_EQ(timeline_->events().size(), 2u);
  EXPECT_EQ(timeline_->events()[0].name, "write of the masters");
  EXPECT_EQ(timeline_->events()[1].name, "read of the masters");
  for (const auto& event : timeline_->events()) EXPECT_LE(event.interval.begin, event.interval.end);
}

TEST_F(OnDisk, BuffersAreReused) {
  const auto disk = store(1 << 30);
  StoredTensor tensor(kStep, at::kFloat, disk, "states");
  for (int i = 0; i < 10; ++i) {
    Tensor values = i == 0 ? tensor.blank(0, kStep).zero_() : tensor.read().wait();
    tensor.write_back(0, values.add_(1));
    disk->finish_writes();
  }
  EXPECT_TRUE(tensor.read().wait().eq(10).all().item<bool>());
  EXPECT_EQ(pool_->idle_bytes(), 0);  // the only buffer was just read into
}

TEST_F(OnDisk, LeavesNoFileBehind) {
  StoredTensor tensor(kStep, at::kFloat, store(0), "states");
  tensor.write(0, at::ones({kStep}));
  EXPECT_EQ(directory_.entries(), 0u);
}

TEST(InMemory, SharesTheTensor) {
  Tensor values = at::arange(10, at::kFloat);
  StoredTensor tensor(values);
  tensor.read(2, 3).wait().fill_(-1);
  EXPECT_TRUE(tensor.in_memory());
  EXPECT_EQ(values.eq(-1).sum().item<int64_t>(), 3);
  tensor.write(5, at::full({2}, 9, at::kDouble));
  EXPECT_EQ(values[6].item<double>(), 9);
  tensor.clear();
  EXPECT_TRUE(values.eq(0).all().item<bool>());
}

TEST(DiskStore, NamesADirectoryThatIsNone) {
  EXPECT_THAT(testing::value_error(
                  [] { DiskStore store({.directory = "/no/such/place"}, std::make_shared<BufferPool>()); }),
              ::testing::HasSubstr("/no/such/place"));
}

}  // namespace
}  // namespace trireme::core
