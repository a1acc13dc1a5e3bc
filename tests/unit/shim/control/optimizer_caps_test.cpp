// SPDX-License-Identifier: Apache-2.0
// What the optimizer that the job has named allows, and what the guard is told of it.
#include <gtest/gtest.h>

#include <string>

#include "base/config.h"
#include "shim/control/guard_settings.h"
#include "shim/settings/optimizer.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

executor::Optimizer optimizer(const char* text) {
    executor::Optimizer parsed;
    std::string problem;
    EXPECT_TRUE(executor::parse_optimizer(text, parsed, problem)) << problem;
    return parsed;
}

// The caps of a job that has set none of its own, or those named.
std::pair<std::uint32_t, std::uint32_t> caps(const char* name, bool delay = false,
                                             bool merge = false) {
    Settings settings;
    settings.max_delay = 1;
    settings.max_merge = 2;
    limit_by_optimizer(optimizer(name), delay, merge, settings);
    EXPECT_EQ(settings.combined, delay && merge);
    return {settings.max_delay, settings.max_merge};
}

TEST(Caps, AreThoseTheOptimizerBears) {
    using Caps = std::pair<std::uint32_t, std::uint32_t>;
    EXPECT_EQ(caps("adamw"), Caps(1, 2));
    EXPECT_EQ(caps("sgd:momentum=0.9"), Caps(1, 1));
    EXPECT_EQ(caps("nesterov:momentum=0.9"), Caps(0, 2));
    EXPECT_EQ(caps("sgd:momentum=0.9,nesterov=1", true, false), Caps(1, 2));
    EXPECT_EQ(caps("nesterov:momentum=0"), Caps(0, 1));
    for (const char* const name : {"nadam", "radam", "adamax", "lamb", "rmsprop:momentum=0.9"}) {
        EXPECT_EQ(caps(name), Caps(0, 1)) << name << ": not measured";
        EXPECT_EQ(caps(name, true, true), Caps(1, 2)) << name << ": set by the operator";
    }
    EXPECT_EQ(caps("sgd"), Caps(0, 1));
    EXPECT_EQ(caps("rmsprop"), Caps(0, 1));
    EXPECT_EQ(caps("unknown"), Caps(0, 1));
    EXPECT_EQ(caps("unknown", true, false), Caps(1, 1)) << "the delay was set, merging was not";
    EXPECT_EQ(caps("sgd", false, true), Caps(0, 2)) << "merging was set, the delay was not";
    EXPECT_EQ(caps("sgd:momentum=0.9", true, false), Caps(1, 1));
    EXPECT_EQ(caps("sgd", true, true), Caps(1, 2)) << "set by the operator";
    EXPECT_EQ(caps("adam", true, true), Caps(1, 2));
}

// What clipping does to a late or a merged gradient has not been measured either.
TEST(Caps, OfAJobThatClipsItsGradientsAllowNothingUnlessTheyAreSet) {
    for (const char* const name : {"adamw", "sgd:momentum=0.9", "nesterov:momentum=0.9"}) {
        executor::Optimizer clipped = optimizer(name);
        clipped.clipped = true;
        EXPECT_FALSE(clipped.same_kind(optimizer(name)));
        Settings settings;
        settings.max_delay = 1;
        settings.max_merge = 2;
        Settings own = settings;
        limit_by_optimizer(clipped, false, false, settings);
        EXPECT_EQ(settings.max_delay, 0U) << name;
        EXPECT_EQ(settings.max_merge, 1U) << name;
        EXPECT_TRUE(settings.unmeasured);
        EXPECT_NE(std::string(settings.limited).find("clips"), std::string::npos);
        limit_by_optimizer(clipped, true, true, own);
        EXPECT_EQ(own.max_delay, 1U);
        EXPECT_EQ(own.max_merge, 2U);
        EXPECT_FALSE(own.unmeasured);
    }
}

// Proof says nothing about the learning rate: the operator does, by a cap that allows something.
TEST(Caps, AreNamedByWhatAllowsSomething) {
    const auto named = [](std::vector<const char*> environment) {
        return cap_named(Config::load(environment, "/no/such/deft.conf"));
    };
    EXPECT_FALSE(named({}));
    EXPECT_TRUE(named({"DEFT_MAX_DELAY=1"}));
    EXPECT_TRUE(named({"DEFT_MAX_MERGE=2"}));
    EXPECT_TRUE(named({"DEFT_PLAN=delay1"}));
    EXPECT_FALSE(named({"DEFT_MAX_DELAY=0"}));
    EXPECT_FALSE(named({"DEFT_MAX_DELAY=0", "DEFT_MAX_MERGE=1"}));
}

// DEFT_LANE_CTAS limits the job's own network where it is set, to the default too: a host that sets
// it so and one that does not would make different communicators.
TEST(Settings, TermsTellWhetherTheOwnNetworkIsLimited) {
    const auto terms = [](std::vector<const char*> environment) {
        return Settings::terms(Config::load(environment, "/no/such/deft.conf"));
    };
    const std::string unset = terms({});
    EXPECT_NE(unset, terms({"DEFT_LANE_CTAS=4"}));
    EXPECT_EQ(unset, terms({"DEFT_LANE_CTAS="}));
    EXPECT_EQ(unset, terms({"DEFT_LOG=info"})) << "need not be equal";
}

TEST(Optimizer, TheGuardIsToldWhichIsSgdWithMomentum) {
    for (const auto& [name, heavy_ball] : {std::pair{"sgd:momentum=0.9", true},
                                           {"sgd:momentum=0.9,nesterov=1", false},
                                           {"sgd:momentum=0", false},
                                           {"adam", false},
                                           {"unknown", false}}) {
        ASSERT_TRUE(set_optimizer(name));
        EXPECT_EQ(guard_settings().heavy_ball, heavy_ball) << name;
    }
}

TEST(Optimizer, IsWhatTheJobSaysLast) {
    EXPECT_EQ(known_optimizer(), executor::Optimizer{});
    EXPECT_TRUE(set_optimizer("sgd:momentum=0,lr=0.5"));
    EXPECT_TRUE(known_optimizer().plain());
    EXPECT_EQ(known_optimizer().learning_rate, 0.5);
    EXPECT_FALSE(set_optimizer("nonsense"));
    EXPECT_TRUE(known_optimizer().plain()) << "what is not understood changes nothing";
    EXPECT_TRUE(set_optimizer("sgd:momentum=0.9"));
    EXPECT_FALSE(known_optimizer().plain());
    EXPECT_TRUE(set_optimizer("unknown"));
    EXPECT_EQ(known_optimizer(), executor::Optimizer{});
    EXPECT_TRUE(observe_optimizer("adam"));
    EXPECT_EQ(known_optimizer(), executor::Optimizer{}) << "the job's own word counts";
    EXPECT_TRUE(set_optimizer("adamw"));
    set_gradient_scaling(true);
    executor::Optimizer adam = known_optimizer();
    EXPECT_TRUE(adam.scaled);
    adam.scaled = false;
    EXPECT_FALSE(adam.same_kind(known_optimizer()));
    set_gradient_scaling(false);
    EXPECT_TRUE(adam.same_kind(known_optimizer()));
    set_gradient_clipping(true);
    EXPECT_TRUE(known_optimizer().clipped);
    EXPECT_FALSE(adam.same_kind(known_optimizer()));
    set_gradient_clipping(false);
}

TEST(Optimizer, IsOfTheSameKindWhateverASchedule) {
    EXPECT_TRUE(optimizer("sgd:momentum=0.95,lr=1").same_kind(optimizer("sgd:momentum=0.85")));
    EXPECT_FALSE(optimizer("sgd:momentum=0.9").same_kind(optimizer("sgd:momentum=0.5")));
    EXPECT_FALSE(optimizer("sgd:momentum=0.05").same_kind(optimizer("sgd")));
    EXPECT_FALSE(optimizer("adam").same_kind(optimizer("sgd:momentum=0.9")));
}

}  // namespace
}  // namespace deft::director
