// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/prediction.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "planner/convergence.h"
#include "planner/stability.h"

namespace deft::executor {
namespace {

bool parse_number(std::string_view text, double& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

std::string lower(std::string_view text) {
    std::string result(text);
    for (char& c : result) {
        c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return result;
}

}  // namespace

std::string to_text(const Prediction& prediction) {
    char text[48] = "none";
    switch (prediction.kind) {
        case PredictionKind::None:
            break;
        case PredictionKind::Lead:
            std::snprintf(text, sizeof(text), "lead:%g", prediction.value);
            break;
        case PredictionKind::Quad:
            std::snprintf(text, sizeof(text), "quad");
            break;
        case PredictionKind::Damp:
            std::snprintf(text, sizeof(text), "damp:%g", prediction.value);
            break;
    }
    return text;
}

namespace {

// False: no optimizer is called so.
bool set_family(std::string_view name, Optimizer& parsed) {
    struct Known {
        std::string_view name;
        Optimizer optimizer;
    };
    using Family = Optimizer::Family;
    const auto of = [](Family family, double momentum, bool nesterov, bool measured) {
        Optimizer optimizer;
        optimizer.family = family;
        optimizer.momentum = momentum;
        optimizer.nesterov = nesterov;
        optimizer.measured = measured;
        return optimizer;
    };
    constexpr double kBeta1 = 0.9;  // where nobody says otherwise
    const Optimizer unknown;
    const Known all[] = {
        {"", unknown},
        {"unknown", unknown},
        {"sgd", of(Family::Sgd, unknown.momentum, false, unknown.measured)},
        {"nesterov", of(Family::Sgd, unknown.momentum, true, unknown.measured)},
        {"adam", of(Family::Adaptive, kBeta1, unknown.nesterov, true)},
        {"adamw", of(Family::Adaptive, kBeta1, unknown.nesterov, true)},
        {"nadam", of(Family::Adaptive, kBeta1, unknown.nesterov, false)},
        {"radam", of(Family::Adaptive, kBeta1, unknown.nesterov, false)},
        {"adamax", of(Family::Adaptive, kBeta1, unknown.nesterov, false)},
        {"lamb", of(Family::Adaptive, kBeta1, unknown.nesterov, false)},
        {"adagrad", of(Family::Adaptive, unknown.momentum, unknown.nesterov, false)},
        {"adadelta", of(Family::Adaptive, unknown.momentum, unknown.nesterov, false)},
        {"rmsprop", of(Family::Adaptive, unknown.momentum, unknown.nesterov, false)}};
    for (const Known& known : all) {
        if (known.name == name) {
            parsed = known.optimizer;
            return true;
        }
    }
    return false;
}

bool set_parameter(std::string_view item, Optimizer& parsed, std::string& problem) {
    const std::size_t equals = item.find('=');
    double value = 0;
    if (equals == std::string_view::npos || !parse_number(item.substr(equals + 1), value) ||
        value < 0) {
        problem = "\"" + std::string(item) + "\" is not NAME=NUMBER";
        return false;
    }
    const std::string_view key = item.substr(0, equals);
    if (key == "momentum" && value < 1) {
        parsed.momentum = value;
    } else if (key == "lr") {
        parsed.learning_rate = value;
    } else if (key == "nesterov" && (value == 0 || value == 1)) {
        parsed.nesterov = value == 1;
    } else {
        problem = "\"" + std::string(item) + "\": expects momentum=0..1, lr=NUMBER or nesterov=0|1";
        return false;
    }
    return true;
}

// What suits this optimizer.
Prediction automatic(const Optimizer& optimizer, std::uint32_t delay, std::uint32_t merge) {
    if (delay == 0 || !(optimizer.momentum > 0 || optimizer.plain())) {
        return {};
    }
    if (optimizer.momentum <= 0) {
        return {PredictionKind::Damp, 0.5};
    }
    // An update of `merge` gradients comes with as many steps of momentum, and is late by as many
    // updates as fit into the delay.
    const std::uint32_t steps = merge > 0 ? merge : 1;
    const std::uint32_t late = (delay + steps - 1) / steps;
    const double momentum = std::pow(optimizer.momentum, steps);
    const Prediction lead{PredictionKind::Lead, planner::predicted_delivery_lead(momentum, late)};
    const bool sgd = optimizer.family == Optimizer::Family::Sgd;
    if (!sgd || delay != 1 || steps != 1) {
        return lead;
    }
    // Of these, what bears the largest learning rate on a quadratic.
    const auto limit = [&optimizer](const Prediction& prediction) {
        const Factors f = factors(prediction, 1, 1, 1, 1);
        return planner::stability_limit(planner::LateSteps{
            optimizer.momentum, optimizer.nesterov, 1, 1, {f.now, f.previous, f.before_previous}});
    };
    const Prediction none;
    const Prediction linear = limit(lead) > limit(none) ? lead : none;
    const Prediction quad{PredictionKind::Quad, 0};
    return !optimizer.nesterov && limit(quad) > limit(linear) ? quad : linear;
}

// "lead:2" for the word "lead": the number behind it, if it is within 0..most.
bool value_of(std::string_view text, std::string_view word, double most, double& value) {
    return text.starts_with(word) && parse_number(text.substr(word.size()), value) && value >= 0 &&
           value <= most;
}

}  // namespace

bool parse_optimizer(std::string_view text, Optimizer& optimizer, std::string& problem) {
    const std::string all = lower(text);
    std::string_view rest = all;
    const std::string_view name = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    Optimizer parsed;
    if (!set_family(name, parsed)) {
        problem = "optimizer \"" + std::string(name) + "\" is not known";
        return false;
    }
    while (!rest.empty()) {
        const std::string_view item = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(rest.size(), item.size() + 1));
        if (!set_parameter(item, parsed, problem)) {
            return false;
        }
    }
    optimizer = parsed;
    return true;
}

bool parse_prediction(std::string_view text, const Optimizer& optimizer, std::uint32_t delay,
                      std::uint32_t merge, Prediction& prediction, std::string& problem) {
    double value = 0;
    if (value_of(text, "lead:", 10, value)) {
        prediction = {PredictionKind::Lead, value};
    } else if (value_of(text, "damp:", 1, value) && value > 0) {
        prediction = {PredictionKind::Damp, value};
    } else if (text == "quad") {
        prediction = {PredictionKind::Quad, 0};
    } else if (text == "auto") {
        prediction = automatic(optimizer, delay, merge);
    } else if (text == "none") {
        prediction = {};
    } else {
        problem =
            "\"" + std::string(text) + "\": expects auto, none, lead:0..10, quad or damp:0..1";
        return false;
    }
    return true;
}

Factors factors(const Prediction& prediction, std::uint32_t delay, std::uint32_t count,
                std::uint32_t previous_count, std::uint32_t before_previous_count) {
    if (delay == 0 || count == 0) {
        return {};
    }
    // Sums of different numbers of gradients are compared as if they had as many.
    const auto like = [count](std::uint32_t other) { return static_cast<double>(count) / other; };
    // Sums of so many gradients are as many iterations apart.
    const double d = static_cast<double>(delay) / count;
    switch (prediction.kind) {
        case PredictionKind::None:
            return {};
        case PredictionKind::Damp:
            return {prediction.value, 0, 0};
        case PredictionKind::Lead:
            if (previous_count == 0) {
                return {};
            }
            return {1 + prediction.value, -prediction.value * like(previous_count), 0};
        case PredictionKind::Quad:
            if (previous_count == 0) {
                return {};
            }
            if (before_previous_count == 0) {  // linear so far
                return {1 + d, -d * like(previous_count), 0};
            }
            // The parabola through three sums one apart, `d` further on.
            return {(d + 1) * (d + 2) / 2, -d * (d + 2) * like(previous_count),
                    d * (d + 1) / 2 * like(before_previous_count)};
    }
    return {};
}

}  // namespace deft::executor
