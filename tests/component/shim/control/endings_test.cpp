// SPDX-License-Identifier: Apache-2.0
// The hooks that end a communicator whose plan has transfers under way.
#include "shim/nccl/registry.h"
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

const auto kComm = reinterpret_cast<deft_nccl_comm_t>(std::uintptr_t{4096});  // the job's

// What NCCL is asked to do with it.
struct Asked {
    std::atomic<int> destroyed{0};
    std::atomic<int> aborted{0};
    std::atomic<int> revoked{0};
    std::atomic<int> shrunk{0};
    bool waited_in_vain = false;  // for its kernels, which come behind a lane's
    int finalize_answer = DEFT_NCCL_SUCCESS;
    bool address_used_again = false;  // as soon as it is free
};
Asked g_asked;

// It ends its kernels, and waits until they are over: those behind a lane's transfer too.
void told() {
    g_lanes.job_stuck = false;
    g_asked.waited_in_vain = !eventually([] { return !g_lanes.held_transfers.load(); });
}

const NcclTable& job_table() {
    static const NcclTable table = [] {
        NcclTable t = fake_table();
        t.CommDestroy = [](deft_nccl_comm_t) { return ++g_asked.destroyed, 0; };
        t.CommAbort = [](deft_nccl_comm_t comm) {
            told();
            if (g_asked.address_used_again) {
                Registry::process().add(comm, &job_table(), 2, 0, kRanks);
            }
            return ++g_asked.aborted, 0;
        };
        t.CommFinalize = [](deft_nccl_comm_t) { return g_asked.finalize_answer; };
        t.CommRevoke = [](deft_nccl_comm_t, int) { return told(), ++g_asked.revoked, 0; };
        t.CommShrink = [](deft_nccl_comm_t, int*, int, deft_nccl_comm_t*, deft_nccl_config_t*,
                          int) { return told(), ++g_asked.shrunk, 0; };
        return t;
    }();
    return table;
}

class Ending : public StuckTransfer {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(StuckTransfer::SetUp());
        g_asked.destroyed = g_asked.aborted = g_asked.revoked = g_asked.shrunk = 0;
        g_asked.waited_in_vain = false;
        g_asked.address_used_again = false;
        g_asked.finalize_answer = DEFT_NCCL_SUCCESS;
        const CommunicatorPin entry = Registry::process().add(kComm, &job_table(), 1, 1, kRanks);
        ASSERT_TRUE(entry);
        entry->director = director_;
        entry->council = &scene_[1];
    }
    void TearDown() override {
        Registry::process().remove(kComm);
        StuckTransfer::TearDown();
    }
    static ncclResult_t asynchronous_error() {
        ncclResult_t error = ncclInternalError;
        EXPECT_EQ(ncclCommGetAsyncError(comm(), &error), ncclSuccess);
        return error;
    }
    static ncclComm_t comm() { return reinterpret_cast<ncclComm_t>(kComm); }
};

// Its smaller child comes to an agreement through the council.
TEST_F(Ending, ARevokeAbortsLanesAndStaysInTheCouncil) {
    EXPECT_EQ(ncclCommRevoke(comm(), NCCL_REVOKE_DEFAULT), ncclSuccess);
    EXPECT_EQ(g_asked.revoked, 1);
    EXPECT_TRUE(lanes_aborted(1));
    EXPECT_TRUE(scene_[1].open());
    EXPECT_FALSE(job_->make(*director_, ordinal_, kCounts[0]));
    EXPECT_EQ(ncclCommDestroy(comm()), ncclSuccess);
    EXPECT_EQ(g_asked.destroyed, 1);
    EXPECT_FALSE(scene_[1].open());
}

// The job destroys it when it is said to be done, from the thread that would have to abort it if
// that took too long.
TEST_F(Ending, ANonblockingFinalizeIsInProgressAsLongAsLanesAre) {
    g_asked.finalize_answer = DEFT_NCCL_IN_PROGRESS;
    EXPECT_EQ(asynchronous_error(), ncclSuccess);
    EXPECT_EQ(ncclCommFinalize(comm()), ncclInProgress);
    EXPECT_EQ(asynchronous_error(), ncclInProgress);
    g_lanes.held_transfers = false;
    EXPECT_TRUE(eventually([] { return asynchronous_error() == ncclSuccess; }));
    EXPECT_EQ(ncclCommDestroy(comm()), ncclSuccess);
    EXPECT_EQ(g_lanes.destroyed, 1);
}

TEST_F(Ending, ANonblockingFinalizeThatIsAbortedWaitsForNothing) {
    g_asked.finalize_answer = DEFT_NCCL_IN_PROGRESS;
    EXPECT_EQ(ncclCommFinalize(comm()), ncclInProgress);
    EXPECT_EQ(asynchronous_error(), ncclInProgress);
    EXPECT_EQ(ncclCommAbort(comm()), ncclSuccess);
    EXPECT_TRUE(lanes_aborted(1));
    EXPECT_EQ(g_asked.aborted, 1);
}

// A rank is gone: a kernel of the job's own communicator stands still, and one on each lane. An
// abort ends its own kernels and waits for those of all others.
class WaitsForTheDevice : public Ending, public ::testing::WithParamInterface<const char*> {};

TEST_P(WaitsForTheDevice, EachIsToldBeforeItIsWaitedForAny) {
    g_lanes.job_stuck = true;
    const std::string how = GetParam();
    if (how == "Abort") {
        EXPECT_EQ(ncclCommAbort(comm()), ncclSuccess);
    } else if (how == "Revoke") {
        EXPECT_EQ(ncclCommRevoke(comm(), NCCL_REVOKE_DEFAULT), ncclSuccess);
    } else {
        int gone = 0;
        ncclComm_t child = nullptr;
        EXPECT_EQ(ncclCommShrink(comm(), &gone, 1, &child, nullptr, NCCL_SHRINK_ABORT),
                  ncclSuccess);
    }
    EXPECT_TRUE(lanes_aborted(1));
    EXPECT_EQ(g_asked.aborted + g_asked.revoked + g_asked.shrunk, 1);
    EXPECT_FALSE(g_lanes.waited_in_vain) << "a lane, for the job's communicator";
    EXPECT_FALSE(g_asked.waited_in_vain) << "the job's communicator, for a lane";
}

INSTANTIATE_TEST_SUITE_P(By, WaitsForTheDevice, ::testing::Values("Abort", "Revoke", "Shrink"),
                         [](const auto& info) { return std::string(info.param); });

// NCCL would free it twice, or end another communicator that has got its address.
TEST_F(Ending, ADestroyThatAnAbortHasReleasedLeavesTheCommunicatorToIt) {
    g_asked.address_used_again = true;
    std::thread job([] { EXPECT_EQ(ncclCommDestroy(comm()), ncclSuccess); });
    EXPECT_TRUE(eventually([&] { return director_->ended(); }));
    EXPECT_EQ(ncclCommAbort(comm()), ncclSuccess);
    job.join();
    EXPECT_EQ(g_asked.aborted, 1);
    EXPECT_EQ(g_asked.destroyed, 0);
    const CommunicatorPin next = Registry::process().find(kComm);
    ASSERT_TRUE(next) << "the new one's entry is gone";
    EXPECT_EQ(next->hash, 2U);
}

// That look frees it when no hook is inside. What a sanitizer finds, and not at every run.
TEST_F(Ending, APlanIsNotFreedUnderTheThreadThatEndsIt) {
    g_lanes.held_transfers = false;
    EXPECT_GE(director_->flush(), 0);
    std::atomic<int> there{0};
    const auto together = [&there] {
        ++there;
        while (there < 2) {
        }
    };
    std::thread background([&] {
        together();
        director_->tick(track_);
    });
    together();
    director_->finalize();
    background.join();
    EXPECT_TRUE(director_->ended());
}

TEST_F(Ending, EachIsToldToNcclOnce) {
    g_lanes.held_transfers = false;
    EXPECT_EQ(ncclCommDestroy(comm()), ncclSuccess);
    EXPECT_EQ(g_asked.destroyed, 1);
    EXPECT_EQ(g_lanes.destroyed, 1);
    EXPECT_FALSE(Registry::process().find(kComm));
}

TEST_F(Ending, ACommunicatorThatIsNotKnownIsForwarded) {
    g_lanes.held_transfers = false;
    ncclUniqueId id;
    ncclComm_t unseen = nullptr;
    ASSERT_EQ(pncclGetUniqueId(&id), ncclSuccess);
    ASSERT_EQ(pncclCommInitRank(&unseen, 1, id, 0), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(unseen), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(unseen), ncclInvalidArgument) << "NCCL still knows it";
}

}  // namespace
}  // namespace deft::director::test
