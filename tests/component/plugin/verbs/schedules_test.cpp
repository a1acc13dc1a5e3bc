// SPDX-License-Identifier: Apache-2.0
// Seeded schedules of the software verbs device's faults over whole connections: no wrong byte,
// none that changes after a message has come, and no hang. DEFT_TEST_SCHEDULES says how many,
// DEFT_TEST_FIRST the first seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "tests/component/plugin/verbs/mixed_pair.h"

namespace deft::net::testing {
namespace {

constexpr std::uint64_t kFew = 20;    // schedules, where nobody says how many
constexpr std::uint64_t kTries = 10;  // for a fault that none of them has brought

class Schedule {
public:
    // `alone`: these faults from the beginning on, and no others.
    explicit Schedule(std::uint64_t seed, const char* alone = nullptr) : random_(seed) {
        tcp_links = 1 + pick(2);
        two_ports = pick(2) == 0;
        messages = 10 + pick(40);
        if (alone != nullptr) {
            at_first = "seed=" + std::to_string(seed) + "," + alone;
            return;
        }
        const std::size_t changes = 1 + pick(4);
        for (std::size_t i = 0; i < changes; ++i) {
            phases_[pick(messages)] = any_faults(seed);
        }
        at_first = pick(3) == 0 ? any_faults(seed) : "";
    }
    // What holds from this message on; NULL: what held before.
    const std::string* from(std::size_t message) const {
        const auto found = phases_.find(message);
        return found == phases_.end() ? nullptr : &found->second;
    }

    std::size_t tcp_links = 1;
    bool two_ports = false;
    std::size_t messages = 0;
    std::string at_first;  // while the paths are made, too

private:
    std::size_t pick(std::size_t below) { return random_() % below; }
    std::string any_faults(std::uint64_t seed) {
        struct Kind {
            const char* name;
            std::size_t percent;  // at most
            std::size_t ms;       // at most; 0: takes none
        };
        static constexpr Kind kKinds[] = {{"lose_acks", 4, 0},       {"resend", 20, 40},
                                          {"late_write", 10, 600},   {"reg_fails", 30, 0},
                                          {"modify_slow", 50, 300},  {"shuffle", 50, 0},
                                          {"complete_late", 10, 40}, {"flush_lost", 30, 0}};
        std::string text = "seed=" + std::to_string(seed);
        for (const Kind& kind : kKinds) {
            if (pick(3) != 0) {
                continue;
            }
            text +=
                std::string(",") + kind.name + "=" + std::to_string(1 + pick(kind.percent)) + "%";
            if (kind.ms > 0) {
                text += std::string(",") + kind.name + "_ms=" + std::to_string(1 + pick(kind.ms));
            }
        }
        return text;
    }

    std::mt19937_64 random_;
    std::map<std::size_t, std::string> phases_;
};

void run(std::uint64_t seed, const Schedule& schedule) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<RdmaPort> near = {soft_port("near", 2)};
    if (schedule.two_ports) {
        near.push_back(soft_port("second", 4));
    }
    MixedPair pair(schedule.tcp_links, opened(near), opened({soft_port("far", 3)}));
    auto faults = std::make_unique<Faults>(schedule.at_first.c_str());
    ASSERT_TRUE(pair.establish());
    pair.run(schedule.messages, [&](std::size_t done) {
        if (const std::string* const text = schedule.from(done)) {
            faults = nullptr;
            faults = std::make_unique<Faults>(text->c_str());
        }
    });
}

TEST(VerbsSchedules, NoWrongByteNoneAfterCompletionNoHang) {
    const char* const wanted = std::getenv("DEFT_TEST_SCHEDULES");
    const std::uint64_t count = wanted == nullptr ? kFew : std::strtoull(wanted, nullptr, 10);
    const char* const first = std::getenv("DEFT_TEST_FIRST");
    const std::uint64_t begin = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
    static constexpr const char* kFaults[] = {"lose_acks",     "resend",      "late_write",
                                              "reg_fails",     "modify_slow", "shuffle",
                                              "complete_late", "flush_lost"};
    for (std::uint64_t seed = begin; seed < begin + count && !HasFailure(); ++seed) {
        if (wanted != nullptr) {  // by hand: which one hangs
            std::printf("seed %lu\n", static_cast<unsigned long>(seed));
            std::fflush(stdout);
        }
        run(seed, Schedule(seed));
    }
    // How many occasions a few seeds give depends on the machine: paths that are not lost are not
    // made anew.
    for (const char* const fault : kFaults) {
        std::printf("%s: %ld times\n", fault, injected(fault));
        std::string alone = std::string(fault) + "=50%," + fault + "_ms=20";
        if (fault == std::string("flush_lost")) {
            alone += ",lose_acks=30%";  // which bring queue pairs into the error state
        }
        for (std::uint64_t seed = 1; injected(fault) == 0 && seed <= kTries; ++seed) {
            run(seed, Schedule(seed, alone.c_str()));
        }
        EXPECT_GT(injected(fault), 0) << fault << " has never come";
    }
    EXPECT_EQ(violations(), 0U);
}

}  // namespace
}  // namespace deft::net::testing
