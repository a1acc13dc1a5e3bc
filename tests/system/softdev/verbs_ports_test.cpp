// SPDX-License-Identifier: Apache-2.0
// Ports follow their netdev: state, GIDs and events, and the faults of events. In a network
// namespace of its own.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "softdev/verbs/softverbs.h"
#include "tests/component/softdev/verbs/fixture.h"

namespace {

void sh(const char* command) {
    ASSERT_EQ(std::system(command), 0) << command;
}

class Ports : public ::testing::Test {
protected:
    void SetUp() override {
        sh("ip link add near type veth peer name far");
        sh("ip link set far up; ip link set near up; ip addr add 10.8.0.1/24 dev near");
        // The kernel tells of a carrier up to a second after it is there.
        sh("for i in $(seq 600); do ip link show near | grep -q 'state UP' && exit 0; sleep 0.05; "
           "done; exit 1");
        setenv("SOFTDEV_VERBS", "soft0 near roce", 1);
        ibv_device** const list = ibv_get_device_list(nullptr);
        context_ = ibv_open_device(list[0]);
        ibv_free_device_list(list);
    }
    void TearDown() override {
        softverbs_set_faults("");
        EXPECT_EQ(ibv_close_device(context_), 0);
        sh("ip link del near");
    }

    ibv_port_state state() const {
        ibv_port_attr attr{};
        EXPECT_EQ(ibv_query_port(context_, 1, &attr), 0);
        return attr.state;
    }
    // The next event; none within `wait` ms: none.
    std::optional<ibv_event_type> event(int wait = 10000) const {
        pollfd one{context_->async_fd, POLLIN, 0};
        ibv_async_event got{};
        if (poll(&one, 1, wait) != 1 || ibv_get_async_event(context_, &got) != 0) {
            return std::nullopt;
        }
        ibv_ack_async_event(&got);
        return got.event_type;
    }

    ibv_context* context_ = nullptr;
};

TEST_F(Ports, FollowTheCarrier) {
    EXPECT_EQ(state(), IBV_PORT_ACTIVE);
    sh("ip link set far down");
    EXPECT_EQ(event(), IBV_EVENT_PORT_ERR);
    EXPECT_EQ(state(), IBV_PORT_DOWN);
    sh("ip link set far up");
    EXPECT_EQ(event(), IBV_EVENT_PORT_ACTIVE);
    EXPECT_EQ(state(), IBV_PORT_ACTIVE);
}

TEST_F(Ports, TellOfNewAddresses) {
    ibv_gid_entry entry{};
    EXPECT_EQ(ibv_query_gid_ex(context_, 1, 4, &entry, 0), ENODATA);
    sh("ip addr add 10.8.0.7/24 dev near");
    EXPECT_EQ(event(), IBV_EVENT_GID_CHANGE);
    ASSERT_EQ(ibv_query_gid_ex(context_, 1, 5, &entry, 0), 0);
    EXPECT_EQ(entry.gid.raw[15], 7);
    EXPECT_EQ(entry.gid_type, static_cast<std::uint32_t>(IBV_GID_TYPE_ROCE_V2));
}

TEST_F(Ports, EventsMayBeMissingOrLate) {
    ASSERT_EQ(softverbs_set_faults("event_missing=1,event_late=1,event_late_ms=300"), 0);
    sh("ip link set far down");
    for (int i = 0; i < 1000 && softverbs_injected("event_missing") == 0; ++i) {
        usleep(1000);
    }
    EXPECT_EQ(softverbs_injected("event_missing"), 1);
    EXPECT_EQ(event(0), std::nullopt);
    EXPECT_EQ(state(), IBV_PORT_DOWN) << "who asks, hears the truth";
    sh("ip link set far up");
    EXPECT_EQ(event(100), std::nullopt);
    EXPECT_EQ(event(), IBV_EVENT_PORT_ACTIVE);
    EXPECT_EQ(softverbs_injected("event_late"), 1);
}

// A netdev with several addresses: packets come from that of the GID that the queue pair names.
TEST(Addresses, AQueuePairSendsFromItsOwnGid) {
    sh("ip link set lo up; ip addr add 10.8.1.1/32 dev lo");
    setenv("SOFTDEV_VERBS", "left lo roce; right lo roce", 1);
    softdev::verbs::testing::Pair pair;
    pair.left.gid_index = pair.right.gid_index = 5;
    pair.connect(16, 1);
    ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 8), pair.right, 0), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
}

}  // namespace

int main(int argc, char** argv) {
    if (unshare(CLONE_NEWNET) != 0) {
        if (std::getenv("TEST_INSIDE") == nullptr &&
            std::system("unshare -Urn true 2>/dev/null") == 0) {
            setenv("TEST_INSIDE", "1", 1);
            execlp("unshare", "unshare", "-Urn", "--", argv[0], nullptr);
        }
        std::printf("skipped: neither root nor user namespaces\n");
        return 77;
    }
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
