// SPDX-License-Identifier: Apache-2.0
#include "shim/nccl/registry.h"

#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <vector>

namespace deft {
namespace {

deft_nccl_comm_t handle(std::uintptr_t number) {
    return reinterpret_cast<deft_nccl_comm_t>(number * 64);
}

class RegistryTest : public ::testing::Test {
protected:
    std::unique_ptr<Registry> registry_ = std::make_unique<Registry>();
    NcclTable table_;
};

TEST_F(RegistryTest, FindsWhatWasAdded) {
    EXPECT_FALSE(registry_->find(handle(1)));
    { EXPECT_TRUE(registry_->add(handle(1), &table_, 7, 0, 2)); }
    const CommunicatorPin pin = registry_->find(handle(1));
    ASSERT_TRUE(pin);
    EXPECT_EQ(pin->hash, 7u);
    EXPECT_EQ(pin->rank, 0);
    EXPECT_EQ(pin->nranks, 2);
    EXPECT_EQ(pin->table, &table_);
    EXPECT_FALSE(pin->details_known()) << "the device is not known yet";
    EXPECT_FALSE(registry_->find(nullptr));
}

TEST_F(RegistryTest, RemovedIsGone) {
    registry_->add(handle(1), &table_, 7, 0, 2);
    registry_->add(handle(2), &table_, 8, 1, 2);
    registry_->remove(handle(1));
    EXPECT_FALSE(registry_->find(handle(1)));
    EXPECT_TRUE(registry_->find(handle(2)));
    registry_->remove(handle(1));
    EXPECT_EQ(registry_->size(), 1u);
}

TEST_F(RegistryTest, IsRemovedByOneOfThoseWhoHoldIt) {
    registry_->add(handle(1), &table_, 7, 0, 2);
    const CommunicatorPin one = registry_->find(handle(1));
    const CommunicatorPin other = registry_->find(handle(1));
    EXPECT_TRUE(registry_->remove(handle(1), one.get()));
    EXPECT_FALSE(registry_->remove(handle(1), other.get()));
    const CommunicatorPin next = registry_->add(handle(1), &table_, 8, 0, 2);
    EXPECT_FALSE(registry_->remove(handle(1), other.get())) << "another one has the address";
    EXPECT_EQ(registry_->size(), 1u);
    EXPECT_TRUE(registry_->remove(handle(1), next.get()));
}

// Ranks count their communicator's calls, and must come to the same numbers.
TEST_F(RegistryTest, ACommunicatorBeginsToCountAnew) {
    for (std::uintptr_t number = 1; number <= Registry::kCapacity; ++number) {
        CommunicatorPin pin = registry_->add(handle(number), &table_, 7, 0, 2);
        pin->numbered_calls[0] = pin->numbered_calls[1] = pin->tuned_calls = pin->tuned_history = 9;
        registry_->remove(handle(number), pin.get());
    }
    const CommunicatorPin pin = registry_->add(handle(1), &table_, 7, 0, 2);
    EXPECT_EQ(pin->numbered_calls[0], 0u);
    EXPECT_EQ(pin->numbered_calls[1], 0u);
    EXPECT_EQ(pin->tuned_calls, 0u);
    EXPECT_EQ(pin->tuned_history, 0u);
}

TEST_F(RegistryTest, AnAddressUsedAgainIsAnotherCommunicator) {
    std::uint32_t first = 0;
    { first = registry_->add(handle(1), &table_, 7, 0, 2)->serial; }
    registry_->remove(handle(1));
    { EXPECT_NE(registry_->add(handle(1), &table_, 9, 0, 2)->serial, first); }
    EXPECT_EQ(registry_->find(handle(1))->hash, 9u);
    // Its end was not seen (an entry point that is not hooked): the new one replaces it.
    { registry_->add(handle(1), &table_, 10, 0, 2); }
    EXPECT_EQ(registry_->find(handle(1))->hash, 10u);
    EXPECT_EQ(registry_->size(), 1u);
}

TEST_F(RegistryTest, APinnedEntryIsNotGivenToAnother) {
    registry_->add(handle(1), &table_, 7, 0, 2);
    const CommunicatorPin pin = registry_->find(handle(1));
    registry_->remove(handle(1));
    for (std::uintptr_t i = 2; i < 2 + Registry::kCapacity + 10; ++i) {
        registry_->add(handle(i), &table_, 100 + i, 0, 2);
    }
    EXPECT_EQ(pin->hash, 7u);
    EXPECT_EQ(pin->handle, nullptr) << "it says that its communicator is gone";
}

TEST_F(RegistryTest, FullIsReportedAndRecovers) {
    for (std::uintptr_t i = 1; i <= Registry::kCapacity; ++i) {
        ASSERT_TRUE(registry_->add(handle(i), &table_, i, 0, 2)) << i;
    }
    EXPECT_FALSE(registry_->add(handle(9999), &table_, 1, 0, 2));
    EXPECT_FALSE(registry_->find(handle(9999)));
    for (std::uintptr_t i = 1; i <= Registry::kCapacity; ++i) {
        EXPECT_TRUE(registry_->find(handle(i))) << i;
    }
    registry_->remove(handle(500));
    EXPECT_TRUE(registry_->add(handle(9999), &table_, 1, 0, 2));
    EXPECT_TRUE(registry_->find(handle(9999)));
}

TEST_F(RegistryTest, ManyGenerationsDoNotWearItOut) {
    for (std::uintptr_t i = 1; i < 20 * Registry::kCapacity; ++i) {
        ASSERT_TRUE(registry_->add(handle(i), &table_, i, 0, 2));
        if (i > 100) {
            registry_->remove(handle(i - 100));
        }
    }
    EXPECT_EQ(registry_->size(), 100u);
    EXPECT_FALSE(registry_->find(handle(5)));
}

TEST_F(RegistryTest, ReadersNeverSeeAnotherCommunicator) {
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> wrong{0};
    std::atomic<std::uint64_t> found{0};
    std::vector<std::thread> readers;
    for (int thread = 0; thread < 3; ++thread) {
        readers.emplace_back([&] {
            std::uintptr_t i = 1;
            while (!stop) {
                i = i % 8 + 1;
                const CommunicatorPin pin = registry_->find(handle(i));
                if (pin) {
                    // Still the one asked for, or gone meanwhile; hash is set with the handle.
                    const deft_nccl_comm_t now = pin->handle;
                    found += 1;
                    wrong += (now == handle(i) && pin->hash != i) ? 1 : 0;
                    wrong += (now != handle(i) && now != nullptr) ? 1 : 0;
                }
            }
        });
    }
    for (int round = 0; round < 20000 || (found == 0 && round < 20000000); ++round) {
        const auto i = static_cast<std::uintptr_t>(round % 8 + 1);
        registry_->add(handle(i), &table_, i, 0, 2);
        registry_->remove(handle(i));
        registry_->add(handle(i), &table_, i, 0, 2);
    }
    stop = true;
    for (std::thread& reader : readers) {
        reader.join();
    }
    EXPECT_EQ(wrong, 0u);
    EXPECT_GT(found, 0u);
}

}  // namespace
}  // namespace deft
