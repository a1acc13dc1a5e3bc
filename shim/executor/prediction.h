// SPDX-License-Identifier: Apache-2.0
// Predicted delivery: a gradient that comes late is extrapolated from the reduced sums before it,
// or damped. Linear in reduced sums, so that replicas stay equal.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace deft::executor {

enum class PredictionKind : std::uint8_t { None, Lead, Quad, Damp };

struct Prediction {
    PredictionKind kind = PredictionKind::None;
    double value = 0;  // Lead: c; Damp: the factor

    // Reduced sums that must be kept beside the one delivered.
    std::uint32_t history() const {
        return kind == PredictionKind::Lead ? 1 : kind == PredictionKind::Quad ? 2 : 0;
    }
    bool operator==(const Prediction&) const = default;
};
std::string to_text(const Prediction& prediction);

// The job's optimizer as far as prediction must know it.
struct Optimizer {
    enum class Family : std::uint8_t { Unknown, Sgd, Adaptive };
    Family family = Family::Unknown;
    double momentum = 0;       // Nesterov counts as momentum; beta1 of Adam and its family
    double learning_rate = 0;  // 0: unknown
    bool nesterov = false;
    bool measured = true;  // of a kind that late and merged sums have been measured with
    bool scaled = false;   // gradients carry a loss scale that changes (GradScaler)
    bool clipped = false;  // the job clips gradients, by their norm or their value
    bool known() const { return family != Family::Unknown; }
    // Whatever the learning rate, which schedules change, and momentum within what they do to it
    // (OneCycleLR: 0.85 to 0.95).
    bool same_kind(const Optimizer& other) const {
        constexpr double kScheduled = 0.11;
        return family == other.family && nesterov == other.nesterov && scaled == other.scaled &&
               measured == other.measured && clipped == other.clipped &&
               (momentum > 0) == (other.momentum > 0) &&
               std::abs(momentum - other.momentum) < kScheduled;
    }
    bool plain() const { return family == Family::Sgd && momentum == 0; }
    bool operator==(const Optimizer&) const = default;
};

// "sgd:momentum=0.9,lr=0.1,nesterov=1", "adam", "adamw:momentum=0.95", "unknown"; names as
// torch.optim's classes in any case. False and `problem` for anything else.
bool parse_optimizer(std::string_view text, Optimizer& optimizer, std::string& problem);

// "none", "lead:0.9", "quad", "damp:0.5"; "auto" chooses by the optimizer and the plan's delay and
// merge: SGD with momentum gets, for one gradient an iteration late, the one of quad, lead and none
// that bears the largest learning rate on a quadratic (momentum from 0.65 on: quad; below: lead;
// Nesterov: lead from 0.68 on, else none). Otherwise momentum gets lead beta + ... + beta^delay,
// and so does Adam's family; plain SGD is damped by half; adaptive optimizers without momentum and
// unknown ones get none (docs/accuracy.md).
bool parse_prediction(std::string_view text, const Optimizer& optimizer, std::uint32_t delay,
                      std::uint32_t merge, Prediction& prediction, std::string& problem);

// Factors of r_t, r_{t-1}, r_{t-2} in what is delivered, for sums of `count` gradients each
// (0: that sum is not at hand) and a delay in iterations. Without the sums it needs, a prediction
// falls back to a shorter one.
struct Factors {
    double now = 1;
    double previous = 0;
    double before_previous = 0;
};
Factors factors(const Prediction& prediction, std::uint32_t delay, std::uint32_t count,
                std::uint32_t previous_count, std::uint32_t before_previous_count);

}  // namespace deft::executor
