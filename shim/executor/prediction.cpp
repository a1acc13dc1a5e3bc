// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/prediction.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "shim/planner/convergence.h"

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

bool parse_optimizer(std::string_view text, Optimizer& optimizer, std::string& problem) {
    const std::string all = lower(text);
    std::string_view rest = all;
    const std::string_view name = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    Optimizer parsed;
    if (name == "sgd" || name == "nesterov") {
        parsed.family = Optimizer::Family::Sgd;
        parsed.nesterov = name == "nesterov";
    } else if (name == "adam" || name == "adamw" || name == "nadam" || name == "radam" ||
               name == "adamax" || name == "lamb") {
        parsed.family = Optimizer::Family::Adaptive;
        parsed.momentum = 0.9;  // beta1 where nobody says otherwise
        parsed.measured = name == "adam" || name == "adamw";
    } else if (name == "adagrad" || name == "adadelta" || name == "rmsprop") {
        parsed.family = Optimizer::Family::Adaptive;
        parsed.measured = false;
    } else if (!name.empty() && name != "unknown") {
        problem = "optimizer \"" + std::string(name) + "\" is not known";
        return false;
    }
    while (!rest.empty()) {
        const std::string_view item = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(rest.size(), item.size() + 1));
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
            problem =
                "\"" + std::string(item) + "\": expects momentum=0..1, lr=NUMBER or nesterov=0|1";
            return false;
        }
    }
    optimizer = parsed;
    return true;
}

bool parse_prediction(std::string_view text, const Optimizer& optimizer, std::uint32_t delay,
                      std::uint32_t merge, Prediction& prediction, std::string& problem) {
    Prediction parsed;
    double value = 0;
    if (text.starts_with("lead:") && parse_number(text.substr(5), value) && value >= 0 &&
        value <= 10) {
        parsed = {PredictionKind::Lead, value};
    } else if (text.starts_with("damp:") && parse_number(text.substr(5), value) && value > 0 &&
               value <= 1) {
        parsed = {PredictionKind::Damp, value};
    } else if (text == "quad") {
        parsed = {PredictionKind::Quad, 0};
    } else if (text == "auto") {
        if (delay > 0 && (optimizer.momentum > 0 || optimizer.plain())) {
            // An update of `merge` gradients comes with as many steps of momentum, and is late by
            // as many updates as fit into the delay.
            const std::uint32_t steps = merge > 0 ? merge : 1;
            const double momentum = std::pow(optimizer.momentum, steps);
            const std::uint32_t late = (delay + steps - 1) / steps;
            const bool heavy_ball =
                optimizer.family == Optimizer::Family::Sgd && !optimizer.nesterov;
            parsed = optimizer.momentum > 0 && heavy_ball && delay == 1 && steps == 1
                         ? Prediction{PredictionKind::Quad, 0}
                     : optimizer.momentum > 0
                         ? Prediction{PredictionKind::Lead,
                                      planner::predicted_delivery_lead(momentum, late)}
                         : Prediction{PredictionKind::Damp, 0.5};
        }
    } else if (text != "none") {
        problem =
            "\"" + std::string(text) + "\": expects auto, none, lead:0..10, quad or damp:0..1";
        return false;
    }
    prediction = parsed;
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
