#include "trireme/alst/disk_target.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/files.h"

namespace trireme::alst {
namespace {

using at::Tensor;

struct Disk {
  testing::TemporaryDirectory directory;
  std::shared_ptr<core::BufferPool> pool = std::make_shared<core::BufferPool>();
  std::shared_ptr<core::DiskStore> store = std::make_shared<core::DiskStore>(
      core::DiskStoreOptions{.directory = directory.path(), .write_behind_bytes = 1 << 20}, pool);
  DiskTarget target{store, pool};
};

TEST(DiskTarget, BringsTensorsBackAsTheyWere) {
  Disk disk;
  const Tensor x = at::arange(24000).view({40, 600}).to(at::kFloat);
  std::vector<Tensor> originals;
  std::vector<std::unique_ptr<OffloadedTensor>> away;
  for (const Tensor& tensor : {x, x.t(), x.narrow(1, 2, 3), x.select(0, 3).expand({7, 600}), x.gt(4),
                               x.to(at::kBFloat16), x.to(at::kLong)}) {
    originals.push_back(tensor.clone(at::MemoryFormat::Preserve));
    away.push_back(disk.target.move_away(tensor));
  }
  disk.target.begin_returning();
  for (size_t i = away.size(); i-- > 0;) {
    away[i]->finish_leaving();
    EXPECT_TRUE(away[i]->has_left());
    if (i > 0) away[i - 1]->start_return();  // ahead
    for (int again = 0; again < 2; ++again) {
      const Tensor back = away[i]->take_back();
      EXPECT_TRUE(at::equal(back, originals[i]));
      EXPECT_EQ(back.scalar_type(), originals[i].scalar_type());
    }
  }
}

TEST(DiskTarget, MovesTheBytesOfTheTensorAndNoMore) {
  Disk disk;
  const Tensor x = at::ones({1024, 8});  // 8 blocks
  auto away = disk.target.move_away(x);
  away->finish_leaving();
  EXPECT_EQ(disk.store->bytes_written(), 32768);
  away->take_back();
  EXPECT_EQ(disk.store->bytes_read(), 32768);
  auto slice = disk.target.move_away(x.narrow(0, 0, 128));
  slice->finish_leaving();
  EXPECT_EQ(disk.store->bytes_written(), 32768 + 4096);
}

TEST(DiskTarget, RoomIsUsedAgain) {
  Disk disk;
  for (int pass = 0; pass < 4; ++pass) {
    std::vector<std::unique_ptr<OffloadedTensor>> away;
    for (int i = 0; i < 3; ++i) {
      away.push_back(disk.target.move_away(at::full({1024}, 10.0f * float(pass) + float(i))));
      away.back()->finish_leaving();
    }
    for (int i = 2; i >= 0; --i) {
      const Tensor back = away[size_t(i)]->take_back();
      EXPECT_TRUE(back.eq(10 * pass + i).all().item<bool>());
    }
  }
  // What was allocated is the most that was there at once: the next room lies behind it.
  EXPECT_EQ(disk.store->allocate(4096), 3 * 4096);
}

TEST(DiskTarget, BuffersReturnWhenTheirTensorIsGoneAndGoWhenReturningBegins) {
  Disk disk;
  auto away = disk.target.move_away(at::ones({1024}));
  away->finish_leaving();
  disk.target.begin_returning();
  EXPECT_EQ(disk.pool->idle_count(), 0);
  disk.store->finish_writes();
  EXPECT_EQ(disk.pool->idle_count(), 0);  // none was held back
  {
    const Tensor back = away->take_back(), view = back.narrow(0, 0, 1);
    EXPECT_EQ(disk.pool->idle_count(), 0);
  }
  EXPECT_EQ(disk.pool->idle_count(), 1);
  // Brought back for nobody.
  away->start_return();
  away.reset();
  EXPECT_EQ(disk.pool->idle_count(), 1);
}

}  // namespace
}  // namespace trireme::alst
