#include "trireme/core/buffer_pool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "trireme/core/aligned_memory.h"

namespace trireme::core {
namespace {

TEST(BufferPool, LendsWholeBlocks) {
  BufferPool pool;
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kByte})
    for (int64_t numel : {1, 7, 4096, 10'001}) {
      const at::Tensor buffer = pool.take(numel, dtype, at::kCPU);
      EXPECT_EQ(buffer.numel(), numel);
      EXPECT_EQ(buffer.scalar_type(), dtype);
      const auto block = block_of(buffer);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % uintptr_t(AlignedMemory::kAlignment), 0u);
      EXPECT_EQ(int64_t(block.size()), round_up_to_alignment(int64_t(buffer.nbytes())));
      block.back() = std::byte{1};  // it is ours
    }
}

TEST(BufferPool, GivesOutAgainWhatCameBack) {
  BufferPool pool;
  at::Tensor buffer = pool.take(100, at::kFloat, at::kCPU);
  const void* memory = buffer.data_ptr();
  pool.give_back(std::move(buffer));
  EXPECT_EQ(pool.idle_bytes(), 400);
  EXPECT_NE(pool.take(101, at::kFloat, at::kCPU).data_ptr(), memory);
  EXPECT_EQ(pool.take(100, at::kFloat, at::kCPU).data_ptr(), memory);
  EXPECT_EQ(pool.idle_bytes(), 0);
}

TEST(BufferPool, OtherTensorsHaveNoBlock) {
  EXPECT_THROW(block_of(at::empty({10000}).narrow(0, 1, 9)), std::logic_error);
}

TEST(BufferPool, KeepsNoMoreThanItsLimit) {
  BufferPool pool(/*pinned=*/false, /*most_idle=*/1);
  at::Tensor a = pool.take(8, at::kFloat, at::kCPU), b = pool.take(16, at::kFloat, at::kCPU);
  const at::Tensor c = pool.take(16, at::kFloat, at::kCPU);
  pool.give_back(std::move(a));
  pool.give_back(std::move(b));  // in place of the other size: that may never be asked for again
  pool.give_back(c);
  EXPECT_EQ(pool.idle_count(), 1);
  EXPECT_EQ(pool.idle_bytes(), 64);
  pool.drop_idle();
  EXPECT_EQ(pool.idle_count(), 0);
}

TEST(BufferPool, ThreadsShareIt) {
  BufferPool pool(/*pinned=*/false, /*most_idle=*/3);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i)
    threads.emplace_back([&pool, i] {
      for (int64_t round = 0; round < 2000; ++round) {
        at::Tensor buffer = pool.take(8 + (i + round) % 3, at::kFloat, at::kCPU);
        buffer.data_ptr<float>()[0] = float(i);
        EXPECT_EQ(buffer.data_ptr<float>()[0], float(i));  // nobody else has it
        pool.give_back(std::move(buffer));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_LE(pool.idle_count(), 3);
}

}  // namespace
}  // namespace trireme::core
