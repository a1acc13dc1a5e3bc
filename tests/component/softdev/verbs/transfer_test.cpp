// SPDX-License-Identifier: Apache-2.0
// What a reliable connection carries.
#include <sys/mman.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>

#include "tests/component/softdev/verbs/fixture.h"

namespace softdev::verbs::testing {
namespace {

void fill(std::vector<char>& memory, std::size_t offset, std::size_t length, int seed) {
    for (std::size_t i = 0; i < length; ++i) {
        memory[offset + i] = static_cast<char>((i * 7 + static_cast<std::size_t>(seed)) % 251);
    }
}

TEST(Transfer, SendFillsTheReceiveRequest) {
    Pair pair;
    pair.connect();
    fill(pair.left.memory, 0, 5000, 1);
    ASSERT_EQ(pair.right.receive(7, pair.right.sge(100, 8000)), 0);
    ASSERT_EQ(pair.left.send(3, pair.left.sge(0, 5000)), 0);
    const ibv_wc got = pair.right.next();
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.opcode, IBV_WC_RECV);
    EXPECT_EQ(got.wr_id, 7U);
    EXPECT_EQ(got.byte_len, 5000U);
    EXPECT_EQ(got.qp_num, pair.right.qp->qp_num);
    EXPECT_EQ(got.src_qp, pair.left.qp->qp_num);
    const ibv_wc sent = pair.left.next();
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.opcode, IBV_WC_SEND);
    EXPECT_EQ(sent.wr_id, 3U);
    EXPECT_EQ(std::memcmp(pair.left.memory.data(), pair.right.memory.data() + 100, 5000), 0);
}

TEST(Transfer, WriteWithImmediateTakesAnEmptyReceiveRequest) {
    Pair pair;
    pair.connect();
    fill(pair.left.memory, 0, 1 << 19, 2);
    ASSERT_EQ(pair.right.receive(9, {}), 0);
    ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 1 << 19), pair.right, 64, 0), 0);
    ASSERT_EQ(pair.left.rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 2, {}, pair.right, 0, IBV_SEND_SIGNALED,
                             0x12345678),
              0);
    const ibv_wc got = pair.right.next();
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(got.imm_data, 0x12345678U);
    EXPECT_TRUE((got.wc_flags & IBV_WC_WITH_IMM) != 0);
    EXPECT_EQ(std::memcmp(pair.left.memory.data(), pair.right.memory.data() + 64, 1 << 19), 0);
    EXPECT_EQ(pair.left.next().wr_id, 2U) << "the first was not to be told";
}

TEST(Transfer, ReadAndAtomicsBringDataBack) {
    Pair pair;
    pair.connect();
    fill(pair.right.memory, 0, 300000, 3);
    ASSERT_EQ(pair.left.rdma(IBV_WR_RDMA_READ, 1, pair.left.sge(0, 300000), pair.right, 0), 0);
    const ibv_wc read = pair.left.next();
    EXPECT_EQ(read.status, IBV_WC_SUCCESS);
    EXPECT_EQ(read.opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(read.byte_len, 300000U);
    EXPECT_EQ(std::memcmp(pair.left.memory.data(), pair.right.memory.data(), 300000), 0);

    auto* const counter = reinterpret_cast<std::uint64_t*>(pair.right.memory.data());
    *counter = 40;
    ibv_send_wr add{};
    add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    add.send_flags = IBV_SEND_SIGNALED;
    add.wr.atomic = {pair.right.address(0), 2, 0, pair.right.mr->rkey};
    ASSERT_EQ(pair.left.post(add, pair.left.sge(0, 8)), 0);
    EXPECT_EQ(pair.left.next().opcode, IBV_WC_FETCH_ADD);
    ibv_send_wr swap = add;
    swap.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    swap.wr.atomic = {pair.right.address(0), 42, 5, pair.right.mr->rkey};
    ASSERT_EQ(pair.left.post(swap, pair.left.sge(8, 8)), 0);
    EXPECT_EQ(pair.left.next().opcode, IBV_WC_COMP_SWAP);
    EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(pair.left.memory.data()), 40U);
    EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(pair.left.memory.data() + 8), 42U);
    EXPECT_EQ(*counter, 5U);
}

TEST(Transfer, InlineDataIsReadWhenPosted) {
    Pair pair;
    pair.connect();
    char word[] = "now";
    const ibv_sge unregistered = {reinterpret_cast<std::uint64_t>(word), sizeof word, 0xbad};
    ASSERT_EQ(pair.left.send(1, unregistered, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
    std::memset(word, 'x', sizeof word);
    ASSERT_EQ(pair.right.receive(1, pair.right.sge(0, 64)), 0);
    EXPECT_EQ(pair.right.next().byte_len, sizeof word);
    EXPECT_STREQ(pair.right.memory.data(), "now");
}

TEST(Transfer, AMessageWithoutReceiveRequestWaits) {
    Pair pair;
    pair.connect();
    pair.left.memory[0] = 42;
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 1)), 0);
    // Retries are counted every 100 ms at the latest, and eight of them would be over in 6 ms.
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    EXPECT_TRUE(pair.left.nothing_completed()) << "rnr_retry 7: for ever";
    EXPECT_EQ(pair.right.memory[0], 0);
    ASSERT_EQ(pair.right.receive(1, pair.right.sge(0, 1)), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[0], 42);
}

TEST(Transfer, NotReadyEndsWithItsRetries) {
    Pair pair;
    pair.connect(20, 7, 1);
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 1)), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_EQ(pair.left.state(), IBV_QPS_ERR);
}

// Nobody answers any more: not even that it is not ready.
TEST(Transfer, APeerThatWaitedAndWentIsMissed) {
    Pair pair;
    pair.connect(16, 1);
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 1)), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ASSERT_EQ(pair.right.go(IBV_QPS_ERR), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_RETRY_EXC_ERR);
}

TEST(Transfer, NobodyAnswersUntilTheTimeOut) {
    Pair pair;
    ASSERT_EQ(pair.left.init(), 0);
    ASSERT_EQ(pair.left.rtr(pair.right), 0);
    ASSERT_EQ(pair.left.rts(12, 1), 0) << "a peer is not asked";
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 1)), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_RETRY_EXC_ERR);
}

TEST(Transfer, AnotherSequenceNumberIsNotAnswered) {
    Pair pair;
    ASSERT_EQ(pair.right.init(), 0);
    ibv_qp_attr attr = pair.right.rtr_attributes(pair.left);
    attr.rq_psn = 78;
    ASSERT_EQ(ibv_modify_qp(pair.right.qp, &attr, kRtrMask), 0);
    ASSERT_EQ(pair.left.init(), 0);
    ASSERT_EQ(pair.left.rtr(pair.right), 0);
    ASSERT_EQ(pair.left.rts(12, 1), 0);
    ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 1), pair.right, 0), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_RETRY_EXC_ERR);
}

// A timer that is set while another thread polls in vain, and nobody polls after that.
TEST(Transfer, WhoPollsInVainTakesNoTimerAway) {
    Pair pair;
    ASSERT_EQ(pair.left.init(), 0);
    ASSERT_EQ(pair.left.rtr(pair.right), 0);
    ASSERT_EQ(pair.left.rts(10, 0), 0);
    for (int round = 0; round < 100; ++round) {
        ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 1)), 0);
        ibv_wc wc{};
        // In vain, but where this thread has not run for the 4 ms that the timer takes.
        ASSERT_GE(ibv_poll_cq(pair.left.cq, 1, &wc), 0);
        for (int i = 0; i < 1000 && pair.left.state() != IBV_QPS_ERR; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        ASSERT_EQ(pair.left.state(), IBV_QPS_ERR);
        ASSERT_EQ(pair.left.go(IBV_QPS_RESET), 0);
        ASSERT_EQ(pair.left.init(), 0);
        ASSERT_EQ(pair.left.rtr(pair.right), 0);
        ASSERT_EQ(pair.left.rts(10, 0), 0);
    }
}

TEST(Transfer, AQueuePairMayBeItsOwnPeer) {
    Pair pair;
    Side& only = pair.left;
    ASSERT_EQ(only.init(), 0);
    ASSERT_EQ(only.rtr(only), 0);
    ASSERT_EQ(only.rts(), 0);
    only.memory[10] = 3;
    ASSERT_EQ(only.rdma(IBV_WR_RDMA_READ, 1, only.sge(0, 4), only, 10), 0);
    EXPECT_EQ(only.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(only.memory[0], 3);
}

TEST(Transfer, EventsWakeWhoWaits) {
    Pair pair;
    ibv_comp_channel* const channel = ibv_create_comp_channel(pair.right.context);
    ibv_cq* const cq = ibv_create_cq(pair.right.context, 8, &pair, channel, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {4, 4, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    ibv_destroy_qp(pair.right.qp);
    pair.right.qp = ibv_create_qp(pair.right.pd, &init);
    pair.connect();
    ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
    ASSERT_EQ(pair.right.receive(1, pair.right.sge(0, 8)), 0);
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 8)), 0);
    ibv_cq* told = nullptr;
    void* context = nullptr;
    pollfd one{channel->fd, POLLIN, 0};
    ASSERT_EQ(poll(&one, 1, 10000), 1);
    ASSERT_EQ(ibv_get_cq_event(channel, &told, &context), 0);
    EXPECT_EQ(told, cq);
    EXPECT_EQ(context, &pair);
    ibv_ack_cq_events(cq, 1);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
    EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);
    ibv_destroy_qp(pair.right.qp);
    pair.right.qp = nullptr;
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

// How a CPU's access to device memory ends.
std::jmp_buf back;
void on_fault(int /*signal*/) {
    std::longjmp(back, 1);
}

TEST(Transfer, DeviceMemoryIsForTheDeviceAlone) {
    Pair pair;
    pair.connect();
    auto* const device = static_cast<char*>(softverbs_alloc_device(10000));
    ASSERT_NE(device, nullptr);
    ibv_mr* const mr = ibv_reg_mr(pair.right.pd, device, 10000, kAllAccess);
    ASSERT_NE(mr, nullptr);
    fill(pair.left.memory, 0, 10000, 4);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {reinterpret_cast<std::uint64_t>(device), mr->rkey};
    ASSERT_EQ(pair.left.post(wr, pair.left.sge(0, 10000)), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    wr.opcode = IBV_WR_RDMA_READ;
    ASSERT_EQ(pair.left.post(wr, pair.left.sge(20000, 10000)), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(pair.left.memory.data(), pair.left.memory.data() + 20000, 10000), 0);

    struct sigaction fault {};
    struct sigaction before {};
    fault.sa_handler = on_fault;
    fault.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &fault, &before);
    volatile bool touched = false;
    if (setjmp(back) == 0) {
        *static_cast<volatile char*>(device) = 1;
        touched = true;
    }
    sigaction(SIGSEGV, &before, nullptr);
    EXPECT_FALSE(touched);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(softverbs_free_device(device), 0);
}

TEST(Transfer, ADmabufIsReadThroughItsDescriptor) {
    Pair pair;
    pair.connect();
    EXPECT_EQ(ibv_reg_dmabuf_mr(pair.right.pd, 0, 4096, 0, -1, kAllAccess), nullptr);
    EXPECT_EQ(errno, EBADF);
    const int file = memfd_create("dmabuf", 0);
    ASSERT_EQ(ftruncate(file, 8192), 0);
    ASSERT_EQ(pwrite(file, "gpu", 3, 4096), 3);
    ibv_mr* const mr = ibv_reg_dmabuf_mr(pair.right.pd, 4096, 4096, 0x7000000000, file, kAllAccess);
    ASSERT_NE(mr, nullptr);
    close(file);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {0x7000000000, mr->rkey};
    ASSERT_EQ(pair.left.post(wr, pair.left.sge(0, 3)), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::string(pair.left.memory.data(), 3), "gpu");
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

}  // namespace
}  // namespace softdev::verbs::testing
