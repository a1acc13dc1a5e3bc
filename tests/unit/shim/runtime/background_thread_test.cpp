// SPDX-License-Identifier: Apache-2.0
// What the hooks hand to the observer.
#include "shim/runtime/background_thread.h"

#include <gtest/gtest.h>

#include <memory>

#include "perf/executor/fake_driver.h"

namespace deft {
namespace {

// The next window opens when no pair is out: one that is never given back would be the end of it.
TEST(BackgroundThread, ALostCallGivesItsEventsBack) {
    const auto pool = cuda::EventPool::create(executor::test::fake_driver(), 0, 4);
    ASSERT_NE(pool, nullptr);
    const auto ring = std::make_unique<CallRing>();
    CallRecord timed;
    timed.events = pool->take();
    BackgroundThread::submit(*ring, timed, pool.get());
    EXPECT_EQ(pool->in_use(), 1) << "it is on its way";
    CallRecord untimed;
    while (ring->lost() == 0) {
        BackgroundThread::submit(*ring, untimed, pool.get());
    }
    CallRecord lost;
    lost.events = pool->take();
    ASSERT_GE(lost.events, 0);
    BackgroundThread::submit(*ring, lost, pool.get());
    EXPECT_EQ(ring->lost(), 2U);
    EXPECT_EQ(pool->in_use(), 1);
}

}  // namespace
}  // namespace deft
