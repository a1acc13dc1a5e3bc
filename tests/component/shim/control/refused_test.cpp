// SPDX-License-Identifier: Apache-2.0
// DEFT_REQUIRE=1: a communicator whose ranks do not come to an agreement fails. What becomes of it
// where another thread ends it meanwhile, as PyTorch's watchdog does.
#include <nccl.h>

#include <atomic>
#include <thread>

#include "shim/hooks/group.h"
#include "shim/nccl/registry.h"
#include "tests/component/shim/agreement/council_scene.h"

namespace deft::test {
namespace {

using agreement::test::eventually;
using agreement::test::Scene;
using agreement::test::terms;

const auto kComm = reinterpret_cast<deft_nccl_comm_t>(std::uintptr_t{4096});

std::atomic<int> g_aborted{0};
bool g_address_used_again = false;  // as soon as it is free

const NcclTable& job_table() {
    static const NcclTable table = [] {
        NcclTable t;
        t.CommAbort = [](deft_nccl_comm_t comm) {
            ++g_aborted;
            if (g_address_used_again) {
                Registry::process().add(comm, &job_table(), 2, 0, 2);
            }
            return 0;
        };
        t.version = 22809;
        return t;
    }();
    return table;
}

// Of two ranks, of which one never comes.
class Refused : public ::testing::Test {
protected:
    void SetUp() override {
        g_aborted = 0;
        g_address_used_again = false;
    }
    void TearDown() override { Registry::process().remove(kComm); }

    // What ncclCommInitRank does when NCCL has made it. `during`: in another thread, while this one
    // waits for the missing rank.
    template <class During>
    void make(std::chrono::nanoseconds patience, During&& during) {
        agreement::Council* const council = scene_.join(0, terms("DEFT_MODE=deft", patience));
        deft_nccl_comm_t comm = kComm;
        std::thread other([&] {
            ASSERT_TRUE(eventually([] {
                const CommunicatorPin entry = Registry::process().find(kComm);
                return entry && entry->council.load() != nullptr;
            }));
            during();
        });
        const int result = group::made(
            {&comm, &job_table(), 1, 0, 2, true, agreement::CouncilRef(council), {}}, 0);
        other.join();
        EXPECT_EQ(result, DEFT_NCCL_SYSTEM_ERROR);
        EXPECT_EQ(comm, nullptr);
    }
    static void abort() {
        EXPECT_EQ(ncclCommAbort(reinterpret_cast<ncclComm_t>(kComm)), ncclSuccess);
    }

    Scene scene_{2};
};

TEST_F(Refused, IsAborted) {
    make(std::chrono::milliseconds(100), [] {});
    EXPECT_EQ(g_aborted, 1);
    EXPECT_FALSE(Registry::process().find(kComm));
}

TEST_F(Refused, IsAbortedOnceWhereTheJobDoesSoToo) {
    make(agreement::test::kPatience, abort);
    EXPECT_EQ(g_aborted, 1) << "NCCL has freed it twice";
    EXPECT_FALSE(Registry::process().find(kComm));
}

TEST_F(Refused, LeavesTheNextCommunicatorOfItsAddressAlone) {
    g_address_used_again = true;
    make(agreement::test::kPatience, abort);
    EXPECT_EQ(g_aborted, 1);
    const CommunicatorPin next = Registry::process().find(kComm);
    ASSERT_TRUE(next) << "the new one's entry is gone";
    EXPECT_EQ(next->hash, 2U);
}

}  // namespace
}  // namespace deft::test
