// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/prediction.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deft::executor {
namespace {

Optimizer optimizer(const char* text) {
    Optimizer parsed;
    std::string problem;
    EXPECT_TRUE(parse_optimizer(text, parsed, problem)) << problem;
    return parsed;
}

Prediction predict(const char* text, const Optimizer& known = {}, std::uint32_t delay = 1,
                   std::uint32_t merge = 1) {
    Prediction parsed;
    std::string problem;
    EXPECT_TRUE(parse_prediction(text, known, delay, merge, parsed, problem)) << problem;
    return parsed;
}

TEST(Optimizer, IsReadFromText) {
    EXPECT_EQ(optimizer("SGD:momentum=0.9,lr=0.1"),
              (Optimizer{Optimizer::Family::Sgd, 0.9, 0.1, false}));
    EXPECT_EQ(optimizer("AdamW").family, Optimizer::Family::Adaptive);
    EXPECT_EQ(optimizer("").family, Optimizer::Family::Unknown);
    EXPECT_EQ(optimizer("unknown").family, Optimizer::Family::Unknown);
    Optimizer kept{Optimizer::Family::Sgd, 0.5, 0, false};
    std::string problem;
    for (const char* bad :
         {"sgdd", "sgd:momentum", "sgd:momentum=x", "sgd:momentum=1", "sgd:momentum=-1",
          "sgd:beta=1", "sgd:nesterov=2", "sgd:momentum=nan"}) {
        problem.clear();
        EXPECT_FALSE(parse_optimizer(bad, kept, problem)) << bad;
        EXPECT_NE(problem, "") << bad;
    }
    EXPECT_EQ(kept.momentum, 0.5);
    EXPECT_TRUE(optimizer("adam:lr=1").same_kind(optimizer("adam:lr=2")));
    EXPECT_FALSE(optimizer("adam").same_kind(optimizer("sgd:momentum=0.9")));
    EXPECT_FALSE(optimizer("nesterov:momentum=0.9").same_kind(optimizer("sgd:momentum=0.9")));
}

TEST(Prediction, IsReadFromText) {
    EXPECT_EQ(predict("none"), Prediction{});
    EXPECT_EQ(predict("lead:0.9"), (Prediction{PredictionKind::Lead, 0.9}));
    EXPECT_EQ(predict("quad").kind, PredictionKind::Quad);
    EXPECT_EQ(predict("damp:0.5"), (Prediction{PredictionKind::Damp, 0.5}));
    Prediction kept;
    std::string problem;
    for (const char* bad : {"", "lead", "lead:", "lead:-1", "lead:99", "damp:0", "damp:2", "quad:1",
                            "lead:inf", "Auto"}) {
        EXPECT_FALSE(parse_prediction(bad, {}, 1, 1, kept, problem)) << bad;
    }
}

TEST(Prediction, AutoFollowsTheOptimizer) {
    const Optimizer momentum = optimizer("sgd:momentum=0.9");
    EXPECT_EQ(predict("auto", momentum, 1, 1).kind, PredictionKind::Quad);
    EXPECT_NEAR(predict("auto", optimizer("sgd:nesterov=1,momentum=0.9"), 1, 1).value, 0.9, 1e-12);
    EXPECT_NEAR(predict("auto", optimizer("nesterov:momentum=0.9"), 1, 1).value, 0.9, 1e-12);
    // Little momentum: a parabola bears smaller rates than a line does, or than nothing.
    EXPECT_EQ(predict("auto", optimizer("sgd:momentum=0.7"), 1, 1).kind, PredictionKind::Quad);
    EXPECT_EQ(predict("auto", optimizer("sgd:momentum=0.6"), 1, 1).kind, PredictionKind::Lead);
    EXPECT_EQ(predict("auto", optimizer("sgd:momentum=0.3"), 1, 1).kind, PredictionKind::Lead);
    EXPECT_EQ(predict("auto", optimizer("nesterov:momentum=0.5"), 1, 1).kind, PredictionKind::None);
    EXPECT_NEAR(predict("auto", momentum, 2, 1).value, 1.71, 1e-12);
    EXPECT_NEAR(predict("auto", momentum, 1, 2).value, 0.81, 1e-12);
    EXPECT_EQ(predict("auto", momentum, 0, 2).kind, PredictionKind::None);
    EXPECT_EQ(predict("auto", optimizer("sgd")), (Prediction{PredictionKind::Damp, 0.5}));
    EXPECT_EQ(predict("auto", optimizer("adam")), (Prediction{PredictionKind::Lead, 0.9}));
    EXPECT_NEAR(predict("auto", optimizer("adamw:momentum=0.95"), 1, 1).value, 0.95, 1e-12);
    EXPECT_EQ(predict("auto", optimizer("adam:momentum=0")).kind, PredictionKind::None);
    EXPECT_EQ(predict("auto", optimizer("rmsprop")).kind, PredictionKind::None);
    EXPECT_EQ(predict("auto", optimizer("unknown")).kind, PredictionKind::None);
}

// A prediction of order n is exact for sums that change as a polynomial of degree n.
TEST(Factors, AreExactForPolynomials) {
    const auto line = [](double t) { return 3 + 2 * t; };
    const auto parabola = [](double t) { return 3 + 2 * t - 0.5 * t * t; };
    for (const std::uint32_t d : {1U, 2U, 3U}) {
        const Factors lead = factors({PredictionKind::Lead, double(d)}, d, 1, 1, 1);
        EXPECT_NEAR(lead.now * line(7) + lead.previous * line(6), line(7 + d), 1e-9);
        const Factors quad = factors({PredictionKind::Quad, 0}, d, 1, 1, 1);
        EXPECT_NEAR(quad.now * parabola(7) + quad.previous * parabola(6) +
                        quad.before_previous * parabola(5),
                    parabola(7 + d), 1e-9);
        const Factors young = factors({PredictionKind::Quad, 0}, d, 1, 1, 0);
        EXPECT_NEAR(young.now * line(7) + young.previous * line(6), line(7 + d), 1e-9);
    }
}

// Merged sums are as many iterations apart as they have gradients.
TEST(Factors, AreExactForMergedSums) {
    const auto sum = [](double t) { return 3 + 2 * t - 0.5 * t * t; };
    const auto line = [](double t) { return 3 + 2 * t; };
    for (const std::uint32_t delay : {1U, 2U, 4U}) {
        const Factors quad = factors({PredictionKind::Quad, 0}, delay, 2, 2, 2);
        EXPECT_NEAR(quad.now * sum(8) + quad.previous * sum(6) + quad.before_previous * sum(4),
                    sum(8 + delay), 1e-9)
            << delay;
        const Factors young = factors({PredictionKind::Quad, 0}, delay, 2, 2, 0);
        EXPECT_NEAR(young.now * line(8) + young.previous * line(6), line(8 + delay), 1e-9) << delay;
    }
}

TEST(Factors, CompareSumsOfDifferentSizes) {
    // Three gradients now, one before: as if the earlier sum had three as well.
    const Factors f = factors({PredictionKind::Lead, 1}, 1, 3, 1, 0);
    EXPECT_EQ(f.now, 2);
    EXPECT_EQ(f.previous, -3);
}

TEST(Factors, ArePlainWithoutDelayOrHistory) {
    const auto plain = [](const Factors& f) {
        return f.now == 1 && f.previous == 0 && f.before_previous == 0;
    };
    EXPECT_TRUE(plain(factors({PredictionKind::Lead, 1}, 0, 1, 1, 1)));
    EXPECT_TRUE(plain(factors({PredictionKind::Lead, 1}, 1, 1, 0, 0)));
    EXPECT_TRUE(plain(factors({PredictionKind::Quad, 0}, 1, 1, 0, 0)));
    EXPECT_TRUE(plain(factors({}, 1, 1, 1, 1)));
    EXPECT_EQ(factors({PredictionKind::Damp, 0.5}, 1, 1, 0, 0).now, 0.5);
    EXPECT_TRUE(plain(factors({PredictionKind::Damp, 0.5}, 0, 1, 0, 0)));
}

}  // namespace
}  // namespace deft::executor
