// SPDX-License-Identifier: Apache-2.0
// Keys, bounds, access rights, and the room of queues.
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/component/softdev/verbs/fixture.h"

namespace softdev::verbs::testing {
namespace {

// A request of the left side that the right side must not carry out: both ends end, and say so.
void expect_refused(Pair& pair, ibv_wc_status status, ibv_event_type event) {
    EXPECT_EQ(pair.left.next().status, status);
    EXPECT_EQ(pair.left.state(), IBV_QPS_ERR);
    EXPECT_EQ(pair.right.state(), IBV_QPS_ERR);
    ibv_async_event told = pair.right.event();
    if (told.event_type == IBV_EVENT_COMM_EST) {  // a request came before it was in RTS
        told = pair.right.event();
    }
    EXPECT_EQ(told.event_type, event);
    EXPECT_EQ(told.element.qp, pair.right.qp);
}

void expect_write_refused(Pair& pair, std::uint64_t address, std::uint32_t key, std::size_t length,
                          char untouched = 0) {
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma = {address, key};
    std::memset(pair.left.memory.data(), 2, length);
    ASSERT_EQ(pair.left.post(wr, pair.left.sge(0, length)), 0);
    expect_refused(pair, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(pair.right.memory[0], untouched);
    EXPECT_EQ(pair.right.memory[pair.right.memory.size() - 1], untouched);
}

TEST(Rights, AWriteStaysInsideItsRegion) {
    Pair pair;
    pair.connect();
    expect_write_refused(pair, pair.right.address(0) + pair.right.memory.size() - 7,
                         pair.right.mr->rkey, 8);
}

TEST(Rights, AWriteMayFillItsRegion) {
    Pair pair;
    pair.connect();
    const std::size_t whole = pair.right.memory.size();
    std::memset(pair.left.memory.data(), 1, whole);
    ASSERT_EQ(pair.left.write(1, pair.left.sge(0, whole), pair.right, 0), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[whole - 1], 1);
    // The sum of address and length is below the region's begin: it has wrapped around.
    expect_write_refused(pair, UINT64_MAX - 3, pair.right.mr->rkey, 8, 1);
}

TEST(Rights, AWriteBeforeItsRegion) {
    Pair pair;
    pair.connect();
    expect_write_refused(pair, pair.right.address(0) - 1, pair.right.mr->rkey, 8);
}

TEST(Rights, AnLkeyIsNoRkey) {
    Pair pair;
    pair.connect();
    expect_write_refused(pair, pair.right.address(0), pair.right.mr->lkey, 8);
}

TEST(Rights, AKeyEndsWithItsRegion) {
    Pair pair;
    pair.connect();
    const std::uint32_t key = pair.right.mr->rkey;
    ASSERT_EQ(ibv_dereg_mr(pair.right.mr), 0);
    pair.right.mr = ibv_reg_mr(pair.right.pd, pair.right.memory.data(), 4096, kAllAccess);
    expect_write_refused(pair, pair.right.address(0), key, 8);
}

TEST(Rights, AKeyIsOfItsDomain) {
    Pair pair;
    pair.connect();
    ibv_pd* const other = ibv_alloc_pd(pair.right.context);
    ibv_mr* const mr = ibv_reg_mr(other, pair.right.memory.data(), 4096, kAllAccess);
    expect_write_refused(pair, pair.right.address(0), mr->rkey, 8);
    ibv_dereg_mr(mr);
    ibv_dealloc_pd(other);
}

TEST(Rights, ARegionWithoutTheRight) {
    Pair pair;
    pair.connect();
    ibv_mr* const mr = ibv_reg_mr(pair.right.pd, pair.right.memory.data(), 4096,
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    expect_write_refused(pair, pair.right.address(0), mr->rkey, 8);
    ibv_dereg_mr(mr);
}

TEST(Rights, AQueuePairWithoutTheRight) {
    Pair pair;
    ASSERT_EQ(pair.left.init(), 0);
    ASSERT_EQ(pair.right.init(IBV_ACCESS_REMOTE_READ), 0);
    ASSERT_EQ(pair.left.rtr(pair.right), 0);
    ASSERT_EQ(pair.right.rtr(pair.left), 0);
    ASSERT_EQ(pair.left.rts(), 0);
    ASSERT_EQ(pair.right.rts(), 0);
    expect_write_refused(pair, pair.right.address(0), pair.right.mr->rkey, 8);
}

TEST(Rights, AReadNeedsItsRight) {
    Pair pair;
    pair.connect();
    ibv_mr* const mr = ibv_reg_mr(pair.right.pd, pair.right.memory.data(), 4096,
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_READ;
    wr.wr.rdma = {pair.right.address(0), mr->rkey};
    ASSERT_EQ(pair.left.post(wr, pair.left.sge(0, 8)), 0);
    expect_refused(pair, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    ibv_dereg_mr(mr);
}

TEST(Rights, LocalMemoryIsCheckedToo) {
    for (int wrong = 0; wrong < 3; ++wrong) {
        Pair pair;
        pair.connect();
        ibv_sge sge = pair.left.sge(0, 8);
        if (wrong == 0) {
            sge.lkey = pair.left.mr->rkey;
        } else if (wrong == 1) {
            sge.addr += pair.left.memory.size() - 4;
        } else {
            ibv_dereg_mr(pair.left.mr);
            pair.left.mr = nullptr;
        }
        ASSERT_EQ(pair.left.write(1, sge, pair.right, 0, 0), 0);
        EXPECT_EQ(pair.left.next().status, IBV_WC_LOC_PROT_ERR) << wrong;
        EXPECT_EQ(pair.right.state(), IBV_QPS_RTS) << "a peer does not hear of it";
    }
}

// What a request names is looked up when the device comes to it, not when it is posted.
TEST(Rights, MemoryMustStayUntilItIsRead) {
    Pair pair;
    ASSERT_EQ(pair.left.init(), 0);
    ASSERT_EQ(pair.left.rtr(pair.right), 0);
    ASSERT_EQ(pair.left.rts(), 0);
    ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 8), pair.right, 0), 0);
    ASSERT_EQ(ibv_dereg_mr(pair.left.mr), 0);
    pair.left.mr = nullptr;
    EXPECT_TRUE(pair.left.nothing_completed());
    ASSERT_EQ(pair.right.init(), 0);
    ASSERT_EQ(pair.right.rtr(pair.left), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(pair.right.memory[0], 0);
}

TEST(Rights, AnErrorWaitsForWhatIsBeforeIt) {
    Pair pair;
    pair.connect();
    ibv_sge bad = pair.left.sge(0, 8);
    bad.lkey ^= 0xff00;
    ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 1 << 19), pair.right, 0), 0);
    ASSERT_EQ(pair.left.write(2, bad, pair.right, 0), 0);
    ASSERT_EQ(pair.left.write(3, pair.left.sge(0, 8), pair.right, 0), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.left.next().status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(pair.left.next().status, IBV_WC_WR_FLUSH_ERR);
}

// A page goes while it is being sent, and a request before it has not been answered.
TEST(Rights, TheRequestThatLosesItsMemoryIsTheOneThatFails) {
    Pair pair;
    pair.connect();
    const std::size_t size = 4 << 20;
    void* const at =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ibv_mr* const mr = ibv_reg_mr(pair.left.pd, at, size, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    munmap(static_cast<char*>(at) + size - 4096, 4096);
    const ibv_sge lost = {reinterpret_cast<std::uint64_t>(at) + size - 65536, 65536, mr->lkey};
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 8)), 0) << "waits for a receive request";
    ASSERT_EQ(pair.left.write(2, lost, pair.right, 0), 0);
    ASSERT_EQ(pair.left.write(3, pair.left.sge(0, 8), pair.right, 0), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(pair.left.nothing_completed());
    ASSERT_EQ(pair.right.receive(1, pair.right.sge(0, 8)), 0);
    for (const auto status : {IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR}) {
        EXPECT_EQ(pair.left.next().status, status);
    }
    ibv_dereg_mr(mr);
    munmap(at, size - 4096);
}

TEST(Rights, AReceiveRequestThatIsTooSmall) {
    Pair pair;
    pair.connect();
    ASSERT_EQ(pair.right.receive(1, pair.right.sge(0, 7)), 0);
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 8)), 0);
    EXPECT_EQ(pair.right.next().status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(pair.left.next().status, IBV_WC_REM_INV_REQ_ERR);
}

TEST(Rights, RegistrationChecksRightsAndMemory) {
    Pair pair;
    ibv_pd* const pd = pair.left.pd;
    char* const data = pair.left.memory.data();
    EXPECT_EQ(ibv_reg_mr(pd, data, 64, IBV_ACCESS_REMOTE_WRITE), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_reg_mr(pd, data, 0, IBV_ACCESS_LOCAL_WRITE), nullptr);
    void* const hole = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(ibv_reg_mr(pd, hole, 8192, IBV_ACCESS_LOCAL_WRITE), nullptr) << "read-only";
    EXPECT_EQ(errno, EFAULT);
    munmap(hole, 8192);
    EXPECT_EQ(ibv_reg_mr(pd, hole, 8192, 0), nullptr) << "not mapped";
}

// RLIMIT_MEMLOCK, for a thread that may not exceed it.
class LockedMemory : public ::testing::Test {
protected:
    void SetUp() override {
        syscall(SYS_capget, &header_, before_);
        __user_cap_data_struct without[2] = {before_[0], before_[1]};
        without[0].effective &= ~(1U << CAP_IPC_LOCK);
        ASSERT_EQ(syscall(SYS_capset, &header_, without), 0);
        ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit_), 0);
        context_ = ibv_open_device(devices_.list[0]);
        pd_ = ibv_alloc_pd(context_);
        memory_ = static_cast<char*>(
            mmap(nullptr, 8 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
    void TearDown() override {
        munmap(memory_, 8 * kPage);
        EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
        EXPECT_EQ(ibv_close_device(context_), 0);
        setrlimit(RLIMIT_MEMLOCK, &limit_);
        syscall(SYS_capset, &header_, before_);
    }
    void allow(rlim_t bytes) const {
        const rlimit few{bytes, limit_.rlim_max};
        ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &few), 0);
    }
    ibv_mr* register_bytes(std::size_t offset, std::size_t bytes) {
        errno = 0;
        return ibv_reg_mr(pd_, memory_ + offset, bytes, kAllAccess);
    }

    static constexpr std::size_t kPage = 4096;
    __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct before_[2]{};
    rlimit limit_{};
    Devices devices_;
    ibv_context* context_ = nullptr;
    ibv_pd* pd_ = nullptr;
    char* memory_ = nullptr;
};

TEST_F(LockedMemory, RegistrationsAreChargedByThePage) {
    allow(4 * kPage);
    ibv_mr* const two = register_bytes(kPage - 1, 2);
    ASSERT_NE(two, nullptr) << "two bytes, two pages";
    ibv_mr* const again = register_bytes(kPage - 1, 2);
    ASSERT_NE(again, nullptr) << "the same pages, once more";
    EXPECT_EQ(register_bytes(kPage, 1), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(ibv_dereg_mr(two), 0);
    ibv_mr* const later = register_bytes(0, 2 * kPage);
    ASSERT_NE(later, nullptr) << "room has come back";
    EXPECT_EQ(register_bytes(0, 1), nullptr) << "what failed was not charged";
    EXPECT_EQ(ibv_dereg_mr(later), 0);
    EXPECT_EQ(ibv_dereg_mr(again), 0);
}

TEST_F(LockedMemory, WithoutAnyLimitOrWithNone) {
    allow(0);
    EXPECT_EQ(register_bytes(0, 1), nullptr);
    EXPECT_EQ(errno, EPERM);
    void* const device = softverbs_alloc_device(kPage);
    ibv_mr* const of_device = ibv_reg_mr(pd_, device, kPage, kAllAccess);
    ASSERT_NE(of_device, nullptr) << "a GPU's memory is not the process's";
    EXPECT_EQ(ibv_dereg_mr(of_device), 0);
    EXPECT_EQ(softverbs_free_device(device), 0);
    if (geteuid() != 0) {
        return;
    }
    syscall(SYS_capset, &header_, before_);
    ibv_mr* const allowed = register_bytes(0, 1);
    if ((before_[0].effective & (1U << CAP_IPC_LOCK)) != 0) {
        EXPECT_NE(allowed, nullptr) << "CAP_IPC_LOCK";
    }
    if (allowed != nullptr) {
        ibv_dereg_mr(allowed);
    }
}

TEST(Rights, TheSendQueueHasItsRoomAndNoMore) {
    Pair pair({.send = 4});
    pair.connect();
    for (std::uint64_t id = 1; id <= 4; ++id) {
        ASSERT_EQ(pair.left.write(id, pair.left.sge(0, 8), pair.right, 0,
                                  id == 2 ? IBV_SEND_SIGNALED : 0),
                  0);
    }
    EXPECT_EQ(pair.left.write(5, pair.left.sge(0, 8), pair.right, 0), ENOMEM);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(pair.left.write(5, pair.left.sge(0, 8), pair.right, 0), ENOMEM) << "not polled";
    EXPECT_EQ(pair.left.next().wr_id, 2U);
    EXPECT_EQ(pair.left.write(5, pair.left.sge(0, 8), pair.right, 0, 0), 0);
    EXPECT_EQ(pair.left.write(6, pair.left.sge(0, 8), pair.right, 0, 0), 0);
    EXPECT_EQ(pair.left.write(7, pair.left.sge(0, 8), pair.right, 0), ENOMEM)
        << "3 and 4 were unsignaled: nobody can know that they are done";
}

TEST(Rights, TheReceiveQueueAndTheEntriesHaveLimits) {
    Pair pair({.receive = 2});
    ASSERT_EQ(pair.left.init(), 0);
    ASSERT_EQ(pair.left.receive(1, {}), 0);
    ASSERT_EQ(pair.left.receive(2, {}), 0);
    EXPECT_EQ(pair.left.receive(3, {}), ENOMEM);
    Pair other;
    other.connect();
    std::vector<ibv_sge> five(5, other.left.sge(0, 8));
    ibv_send_wr wr{};
    ibv_send_wr* bad = nullptr;
    wr.sg_list = five.data();
    wr.num_sge = 5;
    EXPECT_EQ(ibv_post_send(other.left.qp, &wr, &bad), EINVAL);
    EXPECT_EQ(bad, &wr);
    EXPECT_EQ(other.left.send(1, other.left.sge(0, 65), IBV_SEND_INLINE), EINVAL) << "limit 64";
}

TEST(Rights, ACompletionQueueThatOverflowsIsLost) {
    Pair pair({.cq_entries = 2, .all_signaled = true});
    pair.connect();
    for (std::uint64_t id = 1; id <= 3; ++id) {
        ASSERT_EQ(pair.left.write(id, pair.left.sge(0, 8), pair.right, 0, 0), 0);
    }
    const ibv_async_event told = pair.left.event();
    EXPECT_EQ(told.event_type, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(told.element.cq, pair.left.cq);
    EXPECT_EQ(pair.left.event().event_type, IBV_EVENT_QP_FATAL);
    EXPECT_EQ(pair.left.state(), IBV_QPS_ERR);
    EXPECT_EQ(pair.left.next().wr_id, 1U);
    EXPECT_EQ(pair.left.next().wr_id, 2U);
    ibv_wc wc{};
    EXPECT_LT(ibv_poll_cq(pair.left.cq, 1, &wc), 0);
}

// Each flushed request takes an entry, the unsignaled too.
TEST(Rights, FlushesNeedRoomToo) {
    Pair pair({.cq_entries = 2});
    pair.connect();
    for (std::uint64_t id = 1; id <= 3; ++id) {
        ASSERT_EQ(pair.left.send(id, pair.left.sge(0, 8), 0), 0) << "waits for a receive request";
    }
    ASSERT_EQ(pair.left.go(IBV_QPS_ERR), 0);
    const ibv_async_event told = pair.left.event();
    EXPECT_EQ(told.event_type, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(told.element.cq, pair.left.cq);
}

}  // namespace
}  // namespace softdev::verbs::testing
