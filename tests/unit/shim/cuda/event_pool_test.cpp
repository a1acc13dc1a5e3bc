// SPDX-License-Identifier: Apache-2.0
// The clock of a device that is busy, or refuses: a driver that answers when the test says so.
#include "shim/cuda/event_pool.h"

#include <gtest/gtest.h>

#include <array>

namespace deft::cuda {
namespace {

struct Device {
    int events = 0;
    int records = 0;
    std::array<std::int64_t, 8> record_takes{};  // ns, of each record in turn
    int refuses_at = -1;                         // a record
    int state = kSuccess;                        // of a query that is not too early
    std::array<std::int64_t, 8> done_at{};       // by event
    int measured_from = -1;
};
Device g_device;

int index_of(Event event) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(event) / 16) - 1;
}

const Driver& driver() {
    static const Driver driver = [] {
        Driver d;
        d.DeviceGet = [](int*, int) -> int { return kSuccess; };
        d.DevicePrimaryCtxRetain = [](Context*, int) -> int { return kSuccess; };
        d.CtxGetCurrent = [](Context* context) -> int { return *context = nullptr, kSuccess; };
        d.StreamCreate = [](Stream*, unsigned) -> int { return kSuccess; };
        d.EventCreate = [](Event* event, unsigned) -> int {
            *event = reinterpret_cast<Event>(static_cast<std::uintptr_t>(++g_device.events) * 16);
            return kSuccess;
        };
        d.EventRecord = [](Event event, Stream) -> int {
            const auto i = static_cast<std::size_t>(g_device.records++);
            if (g_device.refuses_at == static_cast<int>(i)) {
                return 700;
            }
            const std::int64_t takes = i < 8 ? g_device.record_takes[i] : 0;
            g_device.done_at[static_cast<std::size_t>(index_of(event))] = host_now() + takes;
            return kSuccess;
        };
        d.EventQuery = [](Event event) -> int {
            return host_now() < g_device.done_at[static_cast<std::size_t>(index_of(event))]
                       ? static_cast<int>(kNotReady)
                       : g_device.state;
        };
        d.EventElapsedTime = [](float* milliseconds, Event from, Event) -> int {
            g_device.measured_from =
                g_device.measured_from < 0 ? index_of(from) : g_device.measured_from;
            return *milliseconds = 0, kSuccess;
        };
        return d;
    }();
    return driver;
}

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kNever = 3600 * 1000 * kMs;

class EventClock : public ::testing::Test {
protected:
    void SetUp() override {
        g_device = {};
        pool_ = EventPool::create(driver(), 0, 1);
        ASSERT_NE(pool_, nullptr);
    }
    // The event that a pair is measured from.
    int base() {
        const int pair = pool_->take();
        EXPECT_TRUE(pool_->record_start(pair, nullptr) && pool_->record_end(pair, nullptr));
        std::int64_t start = 0;
        std::int64_t end = 0;
        g_device.measured_from = -1;
        EXPECT_EQ(pool_->resolve(pair, start, end), EventPool::State::Done);
        pool_->give_back(pair);
        return g_device.measured_from;
    }
    std::unique_ptr<EventPool> pool_;
};

TEST_F(EventClock, IsAskedAgainWhereTheDeviceWasTooBusy) {
    g_device.record_takes[0] = kNever;
    EXPECT_EQ(pool_->set_clock(), EventPool::Clock::Late);
    EXPECT_EQ(pool_->set_clock(), EventPool::Clock::Set);
}

TEST_F(EventClock, TheQuickestReadingCounts) {
    g_device.record_takes = {200 * kMs, 20 * kMs, 150 * kMs, 150 * kMs, 150 * kMs};
    EXPECT_EQ(pool_->set_clock(), EventPool::Clock::Set);
    EXPECT_EQ(g_device.records, 5);
    // The first reading is made with the second event, the next one with the first.
    EXPECT_EQ(base(), 0);
}

TEST_F(EventClock, AReadingThatComesToNothingLeavesTheOneBefore) {
    g_device.record_takes = {30 * kMs, kNever};
    EXPECT_EQ(pool_->set_clock(), EventPool::Clock::Set);
    EXPECT_EQ(base(), 1);
}

TEST_F(EventClock, ARefusalIsForGood) {
    g_device.refuses_at = 0;
    EXPECT_EQ(pool_->set_clock(), EventPool::Clock::Refused);
    g_device.state = 700;
    EXPECT_EQ(pool_->set_clock(), EventPool::Clock::Refused);
}

}  // namespace
}  // namespace deft::cuda
