// SPDX-License-Identifier: Apache-2.0
// 256 MiB over two and over eight ranks, one process each: minutes on two cores, so in the suite
// "soak".
#include <chrono>

#include "softdev/nccl/testing/rank_harness.h"
#include "tests/component/softdev/nccl/ranks.h"

namespace softdev::test {
namespace {

using softdev::testing::Options;
using softdev::testing::Process;
using softdev::testing::run_processes;

constexpr size_t kCount = 64 << 20;
constexpr size_t kBlock = 1 << 20;

unsigned block_value(size_t block, int rank) {
    return static_cast<unsigned>((block % 7 + 1) * (static_cast<size_t>(rank) + 1));
}

int reduce_in_place(Process& process) {
    use_device(process.rank);
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CUdeviceptr data = 0;
    EXPECT_EQ(cuMemAlloc(&data, kCount * 4), CUDA_SUCCESS);
    for (size_t block = 0; block < kCount / kBlock; ++block) {
        EXPECT_EQ(cuMemsetD32(data + block * kBlock * 4, block_value(block, process.rank), kBlock),
                  CUDA_SUCCESS);
    }
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);  // the fills are asynchronous, on another stream
    const ncclUniqueId id = process.unique_id();
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, process.nranks, id, process.rank), ncclSuccess)
        << ncclGetLastError(nullptr);
    auto* memory = reinterpret_cast<void*>(data);
    EXPECT_EQ(ncclAllReduce(memory, memory, kCount, ncclUint32, ncclSum, comm,
                            reinterpret_cast<cudaStream_t>(stream)),
              ncclSuccess)
        << ncclGetLastError(nullptr);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    std::vector<unsigned> got(kBlock);
    for (size_t block = 0; block < kCount / kBlock; ++block) {
        unsigned expected = 0;
        for (int rank = 0; rank < process.nranks; ++rank) {
            expected += block_value(block, rank);
        }
        EXPECT_EQ(cuMemcpyDtoH(got.data(), data + block * kBlock * 4, kBlock * 4), CUDA_SUCCESS);
        EXPECT_TRUE(got == std::vector<unsigned>(kBlock, expected)) << "block " << block;
    }
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    return 0;
}

class Large : public ::testing::TestWithParam<int> {};

TEST_P(Large, AllReduceOfAQuarterOfAGigabyte) {
    Options options;
    options.limit = std::chrono::seconds(800);
    const auto outcome = run_processes(GetParam(), reduce_in_place, options);
    EXPECT_TRUE(outcome.good()) << outcome.text();
}

INSTANTIATE_TEST_SUITE_P(Ranks, Large, ::testing::Values(2, 8));

}  // namespace
}  // namespace softdev::test
