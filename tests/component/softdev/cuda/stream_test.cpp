// SPDX-License-Identifier: Apache-2.0
// Order of work on streams: the same stream, events, and the legacy stream's rules.
#include <atomic>
#include <string>

#include "tests/component/softdev/cuda/fixture.h"

namespace softdev::test {
namespace {

class StreamOrder : public SoftCuda {
protected:
    // Appends a letter to the log when its turn comes.
    CUresult log(CUstream s, char letter) {
        auto* entry = new Entry{this, letter};
        return softdevStreamEnqueue(
            s, "log",
            [](void* p) {
                auto* e = static_cast<Entry*>(p);
                std::lock_guard<std::mutex> lock(e->test->mutex_);
                e->test->text_ += e->letter;
                return CUDA_SUCCESS;
            },
            [](void* p) { delete static_cast<Entry*>(p); }, entry, nullptr, 0);
    }
    std::string text() {
        std::lock_guard<std::mutex> lock(mutex_);
        return text_;
    }

    Gate gate_;

private:
    struct Entry {
        StreamOrder* test;
        char letter;
    };
    std::mutex mutex_;
    std::string text_;
};

TEST_F(StreamOrder, RunsInOrderOnOneStream) {
    const CUstream s = stream();
    ASSERT_EQ(gate_.hold(s), CUDA_SUCCESS);
    for (char c = 'a'; c <= 'f'; ++c) {
        ASSERT_EQ(log(s, c), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(text(), "");
    gate_.open();
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(text(), "abcdef");
    EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
}

TEST_F(StreamOrder, WaitsForAnEventOfAnotherStream) {
    const CUstream first = stream();
    const CUstream second = stream();
    const CUevent e = event();
    ASSERT_EQ(gate_.hold(first), CUDA_SUCCESS);
    ASSERT_EQ(log(first, 'a'), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, first), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(second, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(log(second, 'b'), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    gate_.open();
    EXPECT_EQ(cuStreamSynchronize(second), CUDA_SUCCESS);
    EXPECT_EQ(text(), "ab");
    EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS);
}

}  // namespace
}  // namespace softdev::test
