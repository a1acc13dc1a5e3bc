// SPDX-License-Identifier: Apache-2.0
// The checker accepts every policy's plan and rejects every mutation of it; plans survive JSON.
#include "planner/simulator/check.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/json.h"
#include "planner/model/plan_json.h"
#include "planner/policies/policy.h"
#include "planner/simulator/evaluate.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

Options generous() {
    Options options;
    options.max_delay = 64;
    options.max_merge = 64;
    return options;
}

std::string all(const std::vector<std::string>& problems) {
    std::string text;
    for (const std::string& problem : problems) {
        text += problem + "\n";
    }
    return text;
}

class EveryPolicy : public ::testing::TestWithParam<Policy> {};

TEST_P(EveryPolicy, PlansPassTheCheckAndTheBound) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            testing::random_profile(random, 1 + static_cast<std::uint32_t>(random() % 20));
        const Fabric fabric = testing::random_fabric(
            random, 1 + static_cast<std::uint32_t>(random() % 4), seed % 2 == 1);
        Options options = generous();
        options.barrier = seed % 3 == 0 ? Barrier::Layer : Barrier::Update;
        const Plan plan = make_plan(GetParam().name, profile, fabric, options);
        EXPECT_EQ(all(check_plan(plan, profile, fabric, options)), "") << "seed " << seed;
        EXPECT_GE(plan.predicted.gap, -1e-9) << "seed " << seed;
        EXPECT_GT(plan.predicted.updates, 0);
        EXPECT_LE(plan.predicted.updates, 1 + 1e-9);
        if (GetParam().keeps_numbers) {
            EXPECT_EQ(plan.predicted.max_delay, 0U);
            EXPECT_EQ(plan.predicted.max_merge, 1U);
        }
        EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
        EXPECT_EQ(plan_from_json(plan_to_json(plan)).fingerprint(), plan.fingerprint());
        // Deterministic.
        EXPECT_EQ(make_plan(GetParam().name, profile, fabric, options), plan);
    }
}

using Mutation = std::function<void(Plan&)>;

// What is wrong in a plan afterwards. `second`: of its iteration, which the times are measured by.
std::vector<std::pair<const char*, Mutation>> mutations(std::mt19937_64& random,
                                                        const double second) {
    return {
        {"transfer lost",
         [&random](Plan& p) {
             p.transfers.erase(p.transfers.begin() + long(random() % p.transfers.size()));
         }},
        {"transfer twice", [](Plan& p) { p.transfers.push_back(p.transfers.back()); }},
        {"another bucket",
         [&random](Plan& p) {
             Transfer& t = p.transfers[random() % p.transfers.size()];
             t.bucket = static_cast<std::uint32_t>((t.bucket + 1) % p.bucket_bytes.size());
         }},
        {"no such bucket", [](Plan& p) { p.transfers.back().bucket = 1000; }},
        {"range shorter",
         [&random](Plan& p) { p.transfers[random() % p.transfers.size()].end -= 1; }},
        {"range moved",
         [&random](Plan& p) { p.transfers[random() % p.transfers.size()].begin += 1; }},
        {"range too long", [](Plan& p) { p.transfers.back().end += 1; }},
        {"no such link", [](Plan& p) { p.transfers.back().link = 7; }},
        {"other generation", [](Plan& p) { p.transfers.front().generation.count += 1; }},
        {"future gradient", [](Plan& p) { p.transfers.front().generation.first += 2; }},
        {"order", [](Plan& p) { p.transfers.front().order += 1; }},
        {"beyond the period", [](Plan& p) { p.transfers.back().iteration = p.period; }},
        {"starts early", [second](Plan& p) { p.transfers.front().start -= 0.01 * second; }},
        {"ends early", [second](Plan& p) { p.transfers.back().finish -= 0.01 * second; }},
        {"ends late", [second](Plan& p) { p.transfers.back().finish += 0.01 * second; }},
        {"not a time", [](Plan& p) { p.transfers.back().finish = NAN; }},
        {"delivery lost",
         [&random](Plan& p) {
             p.deliveries.erase(p.deliveries.begin() + long(random() % p.deliveries.size()));
         }},
        {"delivered twice", [](Plan& p) { p.deliveries.push_back(p.deliveries.front()); }},
        {"delivered to another bucket",
         [&random](Plan& p) {
             Delivery& d = p.deliveries[random() % p.deliveries.size()];
             d.bucket = static_cast<std::uint32_t>((d.bucket + 1) % p.bucket_bytes.size());
         }},
        {"merged more", [](Plan& p) { p.deliveries.front().generation.count += 1; }},
        {"delivered late", [](Plan& p) { p.deliveries.front().iteration += p.period; }},
        {"period", [](Plan& p) { p.period += 1; }},
        {"no period", [](Plan& p) { p.period = 0; }},
        {"bucket sizes", [](Plan& p) { p.bucket_bytes[0] += 4; }},
        {"links", [](Plan& p) { p.links[0] = "other"; }},
        {"faster than it is", [](Plan& p) { p.predicted.iteration *= 0.99; }},
        {"slower than it is", [](Plan& p) { p.predicted.iteration *= 1.01; }},
        {"delay denied", [](Plan& p) { p.predicted.max_delay += 1; }},
        {"merge denied", [](Plan& p) { p.predicted.max_merge += 1; }},
        {"updates denied", [](Plan& p) { p.predicted.updates *= 7; }},
        {"updates not a number", [](Plan& p) { p.predicted.updates = NAN; }},
        {"age denied", [](Plan& p) { p.predicted.max_age += 1; }},
        {"mean age denied", [](Plan& p) { p.predicted.mean_age += 0.01; }},
        {"lateness denied", [](Plan& p) { p.predicted.late += 0.01; }},
        {"cycles", [](Plan& p) { p.predicted.cycles.clear(); }},
    };
}

TEST_P(EveryPolicy, MutationsAreRejected) {
    std::mt19937_64 random(12345);
    int mutated = 0;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        std::mt19937_64 draw(seed);
        const Profile profile =
            testing::random_profile(draw, 2 + static_cast<std::uint32_t>(draw() % 8));
        const Fabric fabric = testing::random_fabric(draw, 2, seed % 2 == 1);
        const Options options = generous();
        const Plan plan = make_plan(GetParam().name, profile, fabric, options);
        const double second = plan.predicted.iteration;
        for (const auto& [what, mutate] : mutations(random, second)) {
            Plan other = plan;
            mutate(other);
            EXPECT_FALSE(check_plan(other, profile, fabric, options).empty())
                << GetParam().name << ", seed " << seed << ": " << what;
            ++mutated;
        }
    }
    EXPECT_GT(mutated, 300);
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, ::testing::ValuesIn(policies()),
                         [](const auto& info) {
                             std::string name = info.param.name;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

TEST(CheckPlan, CapsAreEnforced) {
    std::mt19937_64 random(3);
    const Profile profile = testing::random_profile(random, 6);
    const Fabric fabric = testing::one_link(1e9);
    const Plan plan = make_plan("deft", profile, fabric, generous());
    ASSERT_GT(plan.predicted.max_delay, 0U);
    Options strict;
    strict.max_delay = 0;
    EXPECT_FALSE(check_plan(plan, profile, fabric, strict).empty());
}

TEST(CheckPlan, SaysWhichFigureTheDeliveriesDeny) {
    std::mt19937_64 random(3);
    const Profile profile = testing::random_profile(random, 6);
    const Fabric fabric = testing::one_link(1e9);
    Plan plan = make_plan("none", profile, fabric);
    plan.predicted.updates = 7;
    EXPECT_EQ(all(check_plan(plan, profile, fabric, generous())),
              "predicted.updates_per_iteration: 7 stated, the deliveries say 1\n");
}

// Both halves are there, and every byte once: what is wrong is that they share a transfer.
TEST(CheckPlan, SaysThatATransferBelongsToOneDelivery) {
    std::mt19937_64 random(3);
    const Profile profile = testing::random_profile(random, 2);
    const Fabric fabric = testing::one_link(1e9);
    Plan plan = make_plan("none", profile, fabric);
    Delivery half = plan.deliveries[0];
    plan.deliveries[0].end = half.begin = half.end / 2;
    plan.deliveries.insert(plan.deliveries.begin() + 1, half);
    const std::string why =
        "begins or ends inside transfers[0], which only one delivery may receive, as a whole\n";
    EXPECT_EQ(all(check_plan(plan, profile, fabric, generous())),
              "deliveries[0]: " + why + "deliveries[1]: " + why);
}

// Also where one of them comes in parts.
TEST(CheckPlan, CountsWhatIsMergedOfAnyByte) {
    std::mt19937_64 random(3);
    const Profile profile = testing::random_profile(random, 1);
    const Fabric fabric = testing::one_link(1e9);
    Plan plan = make_plan("none", profile, fabric);
    Delivery half = plan.deliveries[0];
    half.generation.first -= 1;
    half.end /= 2;
    plan.deliveries.push_back(half);
    half.begin = half.end;
    half.end = plan.deliveries[0].end;
    plan.deliveries.push_back(half);
    Options options = generous();
    options.max_merge = 1;
    EXPECT_NE(all(check_plan(plan, profile, fabric, options))
                  .find("deliveries: 2 iterations merged, allowed 1"),
              std::string::npos);
    options.max_merge = 2;
    EXPECT_EQ(all(check_plan(plan, profile, fabric, options)).find("merged, allowed"),
              std::string::npos);
}

TEST(CheckPlan, WhoWaitsChangesTheFingerprint) {
    std::mt19937_64 random(4);
    const Profile profile = testing::random_profile(random, 6);
    const Plan plan = make_plan("none", profile, testing::one_link(1e9));
    Plan other = plan;
    other.transfers[0].message += 100;
    EXPECT_NE(other.fingerprint(), plan.fingerprint());
    other = plan;
    other.transfers[0].start += 1;  // a prediction, not a decision
    EXPECT_EQ(other.fingerprint(), plan.fingerprint());
}

// Of before plans said what an iteration is worth.
TEST(PlanJson, AnOlderFileIsRead) {
    std::mt19937_64 random(5);
    const Profile profile = testing::random_profile(random, 2);
    const Plan plan = make_plan("deft", profile, testing::one_link(1e9), generous());
    std::string text = plan_to_json(plan);
    const std::size_t at = text.find("\"progress\":");
    ASSERT_NE(at, std::string::npos);
    text.erase(at, text.find(',', at) + 1 - at);
    Plan expected = plan;
    expected.predicted.progress = 1;
    EXPECT_EQ(plan_from_json(text), expected);
    EXPECT_EQ(plan_from_json(text).fingerprint(), plan.fingerprint());
}

TEST(PlanJson, ErrorsNameTheField) {
    std::mt19937_64 random(5);
    const Profile profile = testing::random_profile(random, 2);
    const std::string good = plan_to_json(make_plan("none", profile, testing::one_link(1e9)));
    const auto error = [&](const std::string& from, const std::string& to) -> std::string {
        std::string text = good;
        const auto at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        text.replace(at, from.size(), to);
        try {
            plan_from_json(text);
        } catch (const JsonError& e) {
            return e.what();
        }
        return "accepted";
    };
    EXPECT_NE(error("\"version\":1", "\"version\":2").find("version"), std::string::npos);
    EXPECT_NE(error("\"link\":0", "\"link\":-1").find("transfers[0].link"), std::string::npos);
    EXPECT_NE(error("\"link\":0", "\"lynk\":0").find("transfers[0].link: missing"),
              std::string::npos);
    EXPECT_NE(error("\"stage\":\"backward\"", "\"stage\":\"sideways\"").find("transfers[0].stage"),
              std::string::npos);
    EXPECT_NE(error("\"period\":1", "\"period\":1.5").find("period"), std::string::npos);
    EXPECT_NE(error("\"period\":1", "\"period\":\"1\"").find("period"), std::string::npos);
    EXPECT_NE(error("{\"format\"", "[{\"format\"").find("line 1"), std::string::npos);
}

}  // namespace
}  // namespace deft::planner
