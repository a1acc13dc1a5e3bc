// SPDX-License-Identifier: Apache-2.0
// Connections over the kernel's RDMA stack: SoftRoCE ports rxe0 and rxe1 on the two ends of a veth,
// f0 and f1, in a virtual machine (machine.sh). Says of late writes what the tests on the software
// verbs device say (tests/component/plugin/verbs/verbs_path_test.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/component/plugin/verbs/mixed_pair.h"
#include "topology/rdma_ports.h"

namespace deft::net::testing {
namespace {

void shell(const std::string& command) {
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

Ports port(const std::string& device) {
    std::vector<RdmaPort> ports = list_rdma_ports("/sys", "/dev/infiniband");
    std::erase_if(ports, [&](const RdmaPort& each) { return each.device != device; });
    EXPECT_EQ(ports.size(), 1U) << device;
    for (const RdmaPort& each : ports) {
        EXPECT_EQ(each.obstacle, "");
    }
    return opened(ports);
}

bool eventually(const std::function<bool()>& done) {
    const Nanos end = steady_now() + 20 * kSecond;
    while (!done()) {
        if (steady_now() > end) {
            return false;
        }
        ::usleep(1000);
    }
    return true;
}

TEST(SoftRoce, MessagesComeBitExactOverBothKindsOfLink) {
    MixedPair pair(1, port("rxe0"), port("rxe1"));
    ASSERT_TRUE(pair.establish());
    ASSERT_TRUE(eventually([&] {
        pair.sender->progress(steady_now());
        pair.receiver->progress(steady_now());
        return pair.up() == 2;
    }));
    const std::uint64_t before = sent_by("rxe0:1", "roce");
    ASSERT_TRUE(pair.run(20));
    EXPECT_GT(sent_by("rxe0:1", "roce"), before);
}

TEST(SoftRoce, APortThatGoesDownLosesNothingAndComesBack) {
    MixedPair pair(1, port("rxe0"), port("rxe1"));
    ASSERT_TRUE(pair.establish());
    bool down = false;
    ASSERT_TRUE(pair.run(24, [&](std::size_t done) {
        if (done == 8) {
            shell("/bin/ip link set f0 down");
        }
        down = down || (done > 8 && pair.sender->state(1) != PathState::Up);
        if (done == 20) {
            shell("/bin/ip link set f0 up");
        }
    }));
    EXPECT_TRUE(down) << "its loss was never seen";
    ASSERT_TRUE(eventually([&] {
        pair.sender->progress(steady_now());
        pair.receiver->progress(steady_now());
        return pair.up() == 2;
    }));
    const std::uint64_t before = sent_by("rxe0:1", "roce");
    ASSERT_TRUE(pair.run(10));
    EXPECT_GT(sent_by("rxe0:1", "roce"), before);
}

// One queue pair on each port, and memory of each end.
class LateWrites : public ::testing::Test {
protected:
    static constexpr std::size_t kBytes = 64 * 1024;
    struct End {
        explicit End(const char* device)
            : of(std::static_pointer_cast<const VerbsPort>(port(device).at(0))) {
            std::string problem;
            pair = VerbsQueuePair::make(of->domain, of->options, problem);
            const std::shared_ptr<Domain> domains[] = {of->domain};
            region = std::make_unique<Region>(Memory{bytes.data(), bytes.size()}, domains, problem);
            EXPECT_EQ(problem, "");
        }
        const Registration& keys() const { return *region->in(of->domain.get()); }
        std::shared_ptr<const VerbsPort> of;
        std::vector<std::byte> bytes = std::vector<std::byte>(kBytes);
        std::shared_ptr<VerbsQueuePair> pair;
        std::unique_ptr<Region> region;
    };

    void SetUp() override {
        near_.pair->connect(far_.pair->own());
        far_.pair->connect(near_.pair->own());
        ASSERT_TRUE(eventually([&] {
            return near_.pair->state() == VerbsQueuePair::State::Ready &&
                   far_.pair->state() == VerbsQueuePair::State::Ready;
        })) << near_.pair->why()
            << far_.pair->why();
        std::fill(near_.bytes.begin(), near_.bytes.end(), std::byte{9});
        shell("/bin/tc qdisc add dev f0 root netem delay 800ms limit 10000");
    }
    void TearDown() override {
        shell("/bin/tc qdisc del dev f0 root");
        near_.pair->end();
        far_.pair->end();
    }
    // Posts a write, and gives it up while it is on its way.
    void write_and_give_up() {
        deft_verbs_sge_t piece{reinterpret_cast<std::uint64_t>(near_.bytes.data()), kBytes,
                               near_.keys().local_key};
        deft_verbs_send_wr_t request{};
        request.sg_list = &piece;
        request.num_sge = 1;
        request.opcode = DEFT_VERBS_WR_RDMA_WRITE;
        request.send_flags = DEFT_VERBS_SEND_SIGNALED;
        request.remote_addr = reinterpret_cast<std::uint64_t>(far_.bytes.data());
        request.rkey = far_.keys().remote_key;
        ASSERT_EQ(near_.pair->post(request), 0);
        ::usleep(300'000);
        near_.pair->end();
        deft_verbs_wc_t completion{};
        ASSERT_TRUE(eventually([&] { return near_.pair->poll(std::span(&completion, 1)) == 1; }));
        EXPECT_EQ(completion.status, DEFT_VERBS_WC_WR_FLUSH_ERR);
    }
    // The buffer is used again: so many bytes of it change after that.
    std::size_t overwritten() {
        std::fill(far_.bytes.begin(), far_.bytes.end(), std::byte{0});
        ::usleep(2'000'000);
        const volatile std::byte* const at = far_.bytes.data();
        std::size_t count = 0;
        for (std::size_t i = 0; i < kBytes; ++i) {
            count += at[i] != std::byte{0} ? 1 : 0;
        }
        std::printf("%zu of %zu bytes were overwritten late\n", count, kBytes);
        return count;
    }

    End near_{"rxe0"};
    End far_{"rxe1"};
};

TEST_F(LateWrites, LandWithoutAFence) {
    write_and_give_up();
    EXPECT_GT(overwritten(), 0U);
}

TEST_F(LateWrites, AreKeptOutByTheReceiversErrorState) {
    write_and_give_up();
    far_.pair->end();
    ASSERT_TRUE(eventually([&] { return far_.pair->state() == VerbsQueuePair::State::Ended; }));
    EXPECT_EQ(overwritten(), 0U);
}

}  // namespace
}  // namespace deft::net::testing
