// SPDX-License-Identifier: Apache-2.0
// Many seeded schedules of faults over connections of granted paths and streams: no wrong byte,
// none that changes after a request was done, and no hang. DEFT_TEST_SCHEDULES says how many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/component/plugin/core/granted_job.h"

namespace deft::net::testing {
namespace {

class Schedule {
public:
    explicit Schedule(std::uint64_t seed) : random_(seed) {
        const std::size_t count = 1 + pick(3);
        for (std::size_t i = 0; i < count; ++i) {
            links.push_back(any_link(i == 0 || chance(50)));
        }
        const bool streams = std::any_of(links.begin(), links.end(),
                                         [](const FakeLink& each) { return !each.granted; });
        if (streams && chance(10)) {  // else nothing could go anywhere
            links[0].no_memory[pick(2)] = true;
        }
        const std::size_t faults = 2 + pick(6);
        for (std::size_t i = 0; i < faults; ++i) {
            Fault fault;
            fault.kind = static_cast<Fault::Kind>(pick(4));
            fault.link = pick(count);
            fault.from = static_cast<Nanos>(pick(30000)) * kMicrosecond;
            const Nanos longest[] = {2 * kMillisecond, 50 * kMillisecond, 800 * kMillisecond};
            fault.until =
                fault.from + static_cast<Nanos>(pick(static_cast<std::size_t>(longest[pick(3)])));
            faults_.push_back(fault);
        }
        depth = 1 + pick(6);
        messages = 30 + pick(80);
        for (std::size_t i = 0; i < messages; ++i) {
            const std::size_t largest[] = {8, 4096, 65536, 300000, 300000};
            sizes.push_back(pick(largest[pick(5)] + 1));
        }
    }
    void apply(FakeWire& wire, Nanos since) const {
        for (FakeLink& each : wire.links) {
            each.black_hole = each.acks_lost = false;
            each.carrier = true;
        }
        for (const Fault& fault : faults_) {
            if (since < fault.from || since >= fault.until) {
                continue;
            }
            FakeLink& each = wire.links[fault.link];
            switch (fault.kind) {
                case Fault::Kind::BlackHole:
                    each.black_hole = true;
                    break;
                case Fault::Kind::Carrier:
                    each.carrier = false;
                    break;
                case Fault::Kind::Acknowledgements:
                    each.acks_lost = true;
                    break;
                case Fault::Kind::Both:
                    each.black_hole = each.acks_lost = true;
                    break;
            }
        }
    }

    std::vector<FakeLink> links;
    std::vector<std::size_t> sizes;
    std::size_t depth = 1;
    std::size_t messages = 0;

private:
    struct Fault {
        enum class Kind { BlackHole, Carrier, Acknowledgements, Both };
        Kind kind = Kind::BlackHole;
        std::size_t link = 0;
        Nanos from = 0;
        Nanos until = 0;
    };
    std::size_t pick(std::size_t below) { return random_() % below; }
    bool chance(std::size_t percent) { return pick(100) < percent; }
    Nanos one_of(std::initializer_list<Nanos> values) {
        return values.begin()[pick(values.size())];
    }
    FakeLink any_link(bool granted) {
        FakeLink fake = link(static_cast<double>(1 + pick(8)) / 2,
                             one_of({5 * kMicrosecond, 50 * kMicrosecond, 2 * kMillisecond}));
        fake.granted = granted;
        fake.sees[0] = chance(60);
        fake.sees[1] = chance(60);
        fake.late = one_of({0, kMicrosecond, 3 * kMillisecond, 40 * kMillisecond, kSecond});
        fake.retries_for = one_of({5 * kMillisecond, 20 * kMillisecond, 400 * kMillisecond});
        fake.retract_takes = one_of({0, 0, kMillisecond, 30 * kMillisecond});
        fake.fence_takes = one_of({0, 0, kMillisecond, 30 * kMillisecond});
        fake.out_of_order = chance(50);
        return fake;
    }

    std::mt19937_64 random_;
    std::vector<Fault> faults_;
};

struct Seen {
    std::uint64_t kept_out = 0;
    std::uint64_t resent = 0;
    std::uint64_t fences = 0;
};

void run(std::uint64_t seed, Seen& seen) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Schedule schedule(seed);
    FakeWire wire(schedule.links);
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.messages = schedule.messages;
    options.depth = schedule.depth;
    options.capacity = 300000;
    options.size = [&](std::size_t message) { return schedule.sizes[message]; };
    options.each_step = [&](Nanos since) { schedule.apply(wire, since); };
    GrantedJob job(wire, options);
    const bool done = job.run();
    EXPECT_TRUE(done) << "hangs or fails after " << job.elapsed() / kMillisecond
                      << " ms: " << wire.sender->failure().text << wire.receiver->failure().text;
    if (!done) {
        return;
    }
    job.look_back(1200 * kMillisecond);
    EXPECT_EQ(job.wrong(), 0U);
    EXPECT_EQ(job.changed(), 0U);
    for (const auto& pair : wire.pairs) {
        EXPECT_EQ(pair->changed, 0U) << "memory was used again while a NIC could read it";
        seen.kept_out += pair->kept_out;
        seen.fences += pair->error[1] ? 1 : 0;
    }
    for (const auto& counters : wire.counters) {
        seen.resent += counters->resent_bytes.load();
    }
}

TEST(GrantedSchedules, NoWrongByteNoneAfterCompletionNoHang) {
    const char* const wanted = std::getenv("DEFT_TEST_SCHEDULES");
    const std::uint64_t count = wanted == nullptr ? 100 : std::strtoull(wanted, nullptr, 10);
    const char* const first = std::getenv("DEFT_TEST_FIRST");
    const std::uint64_t begin = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
    Seen seen;
    for (std::uint64_t seed = begin; seed < begin + count && !HasFailure(); ++seed) {
        run(seed, seen);
    }
    EXPECT_GT(seen.kept_out, count / 10) << "nothing was late";
    EXPECT_GT(seen.fences, count / 4);
    EXPECT_GT(seen.resent, 0U);
}

}  // namespace
}  // namespace deft::net::testing
