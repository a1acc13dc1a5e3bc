// SPDX-License-Identifier: Apache-2.0
// Attribute masks, the order of states, and what a state allows.
#include "tests/component/softdev/verbs/fixture.h"

namespace softdev::verbs::testing {
namespace {

TEST(States, EveryRequiredAttributeIsRequired) {
    Pair pair;
    Violations violations;
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = 1;
    for (const int bit : {IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS}) {
        EXPECT_EQ(ibv_modify_qp(pair.left.qp, &init, kInitMask & ~bit), EINVAL) << bit;
    }
    ASSERT_EQ(pair.left.init(), 0);
    ibv_qp_attr rtr = pair.left.rtr_attributes(pair.right);
    for (int bit = 2; bit <= kRtrMask; bit <<= 1) {
        if ((kRtrMask & bit) != 0) {
            EXPECT_EQ(ibv_modify_qp(pair.left.qp, &rtr, kRtrMask & ~bit), EINVAL) << bit;
        }
    }
    ASSERT_EQ(pair.left.rtr(pair.right), 0);
    ibv_qp_attr rts{};
    rts.qp_state = IBV_QPS_RTS;
    for (int bit = 2; bit <= kRtsMask; bit <<= 1) {
        if ((kRtsMask & bit) != 0) {
            EXPECT_EQ(ibv_modify_qp(pair.left.qp, &rts, kRtsMask & ~bit), EINVAL) << bit;
        }
    }
    EXPECT_EQ(violations.since(), 3U + 6U + 5U);
    EXPECT_EQ(pair.left.state(), IBV_QPS_RTR) << "what was refused has changed nothing";
}

TEST(States, SurplusAttributesAreRefused) {
    Pair pair;
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = 1;
    EXPECT_EQ(ibv_modify_qp(pair.left.qp, &init, kInitMask | IBV_QP_TIMEOUT), EINVAL);
    EXPECT_EQ(ibv_modify_qp(pair.left.qp, &init, kInitMask | IBV_QP_QKEY), EINVAL);
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(pair.left.qp, &error, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
}

TEST(States, NoStateIsLeftOut) {
    Pair pair;
    Side& side = pair.left;
    EXPECT_EQ(side.rtr(pair.right), EINVAL) << "from RESET";
    EXPECT_EQ(side.rts(), EINVAL) << "from RESET";
    ASSERT_EQ(side.init(), 0);
    EXPECT_EQ(side.rts(), EINVAL) << "from INIT";
    ASSERT_EQ(side.rtr(pair.right), 0);
    EXPECT_EQ(side.init(), EINVAL) << "from RTR";
    ASSERT_EQ(side.rts(), 0);
    ASSERT_EQ(side.go(IBV_QPS_ERR), 0);
    EXPECT_EQ(side.rts(), EINVAL) << "from ERR";
    ASSERT_EQ(side.go(IBV_QPS_RESET), 0);
    EXPECT_EQ(side.init(), 0);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    attr.cur_qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
}

TEST(States, ValuesMustMakeSense) {
    Pair pair;
    Side& side = pair.left;
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = 2;
    EXPECT_EQ(ibv_modify_qp(side.qp, &init, kInitMask), EINVAL) << "no such port";
    init.port_num = 1;
    init.pkey_index = 1;
    EXPECT_EQ(ibv_modify_qp(side.qp, &init, kInitMask), EINVAL) << "no such partition key";
    ASSERT_EQ(side.init(), 0);
    const ibv_qp_attr good = side.rtr_attributes(pair.right);
    const auto refused = [&](auto change) {
        ibv_qp_attr attr = good;
        change(attr);
        return ibv_modify_qp(side.qp, &attr, kRtrMask) == EINVAL;
    };
    EXPECT_TRUE(refused([](ibv_qp_attr& attr) { attr.path_mtu = static_cast<ibv_mtu>(6); }));
    EXPECT_TRUE(refused([](ibv_qp_attr& attr) { attr.path_mtu = IBV_MTU_4096; })) << "port: 2048";
    EXPECT_TRUE(refused([](ibv_qp_attr& attr) { attr.dest_qp_num = 1U << 24; }));
    EXPECT_TRUE(refused([](ibv_qp_attr& attr) { attr.ah_attr.is_global = 0; })) << "RoCE";
    EXPECT_TRUE(refused([](ibv_qp_attr& attr) { attr.ah_attr.grh.sgid_index = 9; })) << "empty";
    EXPECT_TRUE(refused([](ibv_qp_attr& attr) { attr.ah_attr.port_num = 2; }));
    EXPECT_TRUE(refused([](ibv_qp_attr& attr) { attr.min_rnr_timer = 32; }));
    ibv_qp_attr attr = good;
    ibv_query_gid(pair.right.context, 1, 0, &attr.ah_attr.grh.dgid);
    EXPECT_EQ(ibv_modify_qp(side.qp, &attr, kRtrMask), ETIMEDOUT) << "a GID that nobody has";
    ASSERT_EQ(side.rtr(pair.right), 0);
    EXPECT_EQ(side.rts(32), EINVAL);
    EXPECT_EQ(side.rts(14, 8), EINVAL);
}

TEST(States, PostingHasItsStates) {
    Pair pair;
    Side& side = pair.left;
    EXPECT_EQ(side.receive(1, side.sge(0, 8)), EINVAL) << "RESET";
    EXPECT_EQ(side.send(1, side.sge(0, 8)), EINVAL) << "RESET";
    ASSERT_EQ(side.init(), 0);
    EXPECT_EQ(side.receive(1, side.sge(0, 8)), 0);
    EXPECT_EQ(side.send(1, side.sge(0, 8)), EINVAL) << "INIT";
    ASSERT_EQ(side.rtr(pair.right), 0);
    EXPECT_EQ(side.send(1, side.sge(0, 8)), EINVAL) << "RTR";
    ASSERT_EQ(side.rts(), 0);
    ASSERT_EQ(side.go(IBV_QPS_ERR), 0);
    EXPECT_EQ(side.next().status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(side.send(5, side.sge(0, 8), 0), 0) << "ERR: flushed at once";
    const ibv_wc wc = side.next();
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, 5U);
}

TEST(States, FlushesComeInOrderAndAllAreTold) {
    Pair pair;
    pair.connect();
    for (std::uint64_t id = 1; id <= 3; ++id) {
        ASSERT_EQ(pair.left.receive(10 + id, pair.left.sge(0, 8)), 0);
        ASSERT_EQ(pair.left.send(id, pair.left.sge(0, 8), 0), 0) << "unsignaled";
    }
    ASSERT_EQ(pair.left.go(IBV_QPS_ERR), 0);
    for (const std::uint64_t id : {1, 2, 3, 11, 12, 13}) {
        const ibv_wc wc = pair.left.next();
        EXPECT_EQ(wc.wr_id, id);
        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.qp_num, pair.left.qp->qp_num);
        EXPECT_NE(wc.opcode, IBV_WC_SEND) << "nothing else is valid";
        EXPECT_NE(wc.opcode, IBV_WC_RECV) << "nothing else is valid";
    }
    EXPECT_TRUE(pair.left.nothing_completed()) << "each once";
    ASSERT_EQ(pair.left.go(IBV_QPS_ERR), 0);
    ASSERT_EQ(pair.left.receive(20, pair.left.sge(0, 8)), 0);
    EXPECT_EQ(pair.left.next().wr_id, 20U);
    EXPECT_TRUE(pair.left.nothing_completed()) << "and not again";
}

TEST(States, ResetForgetsAllAndStartsAnew) {
    Pair pair;
    pair.connect();
    ASSERT_EQ(pair.left.receive(1, pair.left.sge(0, 8)), 0);
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 8)), 0);
    ASSERT_EQ(pair.left.go(IBV_QPS_RESET), 0);
    ASSERT_EQ(pair.right.go(IBV_QPS_RESET), 0);
    EXPECT_TRUE(pair.left.nothing_completed());
    pair.connect();
    ASSERT_EQ(pair.left.write(4, pair.left.sge(0, 8), pair.right, 0), 0);
    EXPECT_EQ(pair.left.next().wr_id, 4U);
}

TEST(States, WhatIsDestroyedIsDead) {
    Pair pair;
    ibv_qp* const qp = pair.left.qp;
    ASSERT_EQ(ibv_destroy_qp(qp), 0);
    Violations violations;
    EXPECT_EQ(pair.left.send(1, pair.left.sge(0, 8)), EINVAL);
    EXPECT_EQ(pair.left.receive(1, pair.left.sge(0, 8)), EINVAL);
    EXPECT_EQ(pair.left.go(IBV_QPS_ERR), EINVAL);
    EXPECT_EQ(ibv_destroy_qp(qp), EINVAL);
    ibv_mr* const mr = pair.left.mr;
    EXPECT_EQ(ibv_dealloc_pd(pair.left.pd), EBUSY);
    EXPECT_EQ(ibv_close_device(pair.left.context), EBUSY);
    ASSERT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), EINVAL);
    EXPECT_EQ(violations.since(), 7U);
    pair.left.qp = nullptr;
    pair.left.mr = nullptr;
}

}  // namespace
}  // namespace softdev::verbs::testing
