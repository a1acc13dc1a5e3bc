// SPDX-License-Identifier: Apache-2.0
#include "shim/director/settings.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "shim/director/optimizer.h"
#include "shim/planner/adviser.h"
#include "shim/planner/policies/policy.h"
#include "topology/base/config.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

// Settings that decide what is done with a call: ranks that differ in one would part ways.
constexpr Key kAgreed[] = {Key::Mode,      Key::MaxDelay, Key::MaxMerge,
                           Key::WarmUp,    Key::Plan,     Key::Predict,
                           Key::Optimizer, Key::Guard,    Key::MaxShadowBytes};

// "delay1", "merge2", "merge2-delay1", "covap4"; Config has checked the form. A plan of the other
// mode is not for this one.
void read_forced(const std::string& text, Settings& settings) {
    unsigned delay = 0;
    unsigned merge = 1;
    const bool covap = std::sscanf(text.c_str(), "covap%u", &merge) == 1;
    if (text == "auto" || covap != (settings.mode == ShimMode::Covap)) {
        if (text != "auto") {
            DEFT_WARN_ONCE("DEFT_PLAN=%s is no plan of this DEFT_MODE and is not carried out",
                           text.c_str());
        }
        return;
    }
    if (!covap && std::sscanf(text.c_str(), "merge%u-delay%u", &merge, &delay) < 1) {
        merge = 1;
        std::sscanf(text.c_str(), "delay%u", &delay);
    }
    settings.forced_delay = delay;
    settings.forced_merge = merge;
}

std::string line(const char* format, double a, double b, double c) {
    char text[256];
    std::snprintf(text, sizeof(text), format, a, b, c);
    return text;
}

}  // namespace

void limit_by_optimizer(const executor::Optimizer& optimizer, bool own_delay, bool own_merge,
                        Settings& settings) {
    settings.combined = own_delay && own_merge;
    const bool adaptive = optimizer.family == executor::Optimizer::Family::Adaptive;
    // A late gradient is predicted from momentum; without, nothing makes up for the delay. A sum of
    // two is a step of twice the length, which only adaptive optimizers with momentum bear.
    const bool bears_delay = optimizer.momentum > 0;
    const bool bears_merging = bears_delay && adaptive;
    if (!own_delay && !bears_delay) {
        settings.max_delay = 0;
    }
    if (!own_merge && !bears_merging) {
        settings.max_merge = 1;
    }
    settings.unknown_optimizer = !optimizer.known() && !own_delay && !own_merge;
    if (settings.unknown_optimizer) {
        settings.limited =
            "the optimizer is not known, so gradients are neither delayed nor merged; set "
            "DEFT_OPTIMIZER (adamw, sgd:momentum=0.9), or the caps DEFT_MAX_DELAY and "
            "DEFT_MAX_MERGE";
    } else if (!bears_merging) {
        settings.limited =
            "the caps that are not set are lowered to what the optimizer bears "
            "(docs/accuracy.md)";
    }
}

Settings Settings::process() {
    const Config& config = Config::process();
    Settings settings;
    settings.mode = shim_mode();
    settings.warm_up = static_cast<std::uint64_t>(config.integer(Key::WarmUp));
    settings.max_shadow_bytes = static_cast<std::uint64_t>(config.integer(Key::MaxShadowBytes));
    if (settings.mode >= ShimMode::Deft) {
        settings.max_delay = static_cast<std::uint32_t>(config.integer(Key::MaxDelay));
        settings.max_merge = static_cast<std::uint32_t>(config.integer(Key::MaxMerge));
        read_forced(config.text(Key::Plan), settings);
        settings.delay_cap = settings.max_delay;
        settings.merge_cap = settings.max_merge;
        if (settings.mode == ShimMode::Deft && settings.forced_merge == 0) {
            limit_by_optimizer(
                known_optimizer(), config.setting(Key::MaxDelay).source != ValueSource::Default,
                config.setting(Key::MaxMerge).source != ValueSource::Default, settings);
        }
    } else {
        settings.warm_up = 0;  // nothing is late: nothing to warm up for
    }
    return settings;
}

std::string Settings::terms() {
    const Config& config = Config::process();
    std::string terms;
    for (const Key key : kAgreed) {
        terms += terms.empty() ? "" : " ";
        terms += variable(key).name;
        terms += "=" + config.text(key);
    }
    return terms;
}

namespace {

// The fastest plan. Sums that are merged and late as well cost more accuracy than either alone, so
// one of the two is chosen; that with an update every iteration unless merging is clearly faster.
planner::Plan best_within(const planner::Profile& profile, const planner::Fabric& fabric,
                          const planner::Options& options, bool combined) {
    constexpr double kClearly = 0.95;
    if (combined || options.max_delay == 0 || options.max_merge <= 1) {
        return planner::make_plan("best", profile, fabric, options);
    }
    planner::Options one = options;
    one.max_merge = 1;
    planner::Plan late = planner::make_plan("best", profile, fabric, one);
    one = options;
    one.max_delay = 0;
    planner::Plan merged = planner::make_plan("best", profile, fabric, one);
    return merged.predicted.iteration < kClearly * late.predicted.iteration ? merged : late;
}

}  // namespace

planner::Plan choose_plan(const planner::Profile& profile, const Settings& settings,
                          std::string& note) {
    planner::Fabric fabric;
    fabric.name = "as measured";
    fabric.links.push_back(planner::link_from_transfers(profile));
    // The plugin stripes every message over all links, and NCCL's own transport is one link too.
    fabric.striped = true;
    if (fabric.links.front().name.empty()) {
        throw std::invalid_argument("no transfer has been timed (CUDA events are not available)");
    }
    planner::Options options;
    options.max_delay = settings.max_delay;
    options.max_merge = settings.max_merge;
    planner::Plan plan;
    if (settings.forced_merge > 0) {
        options.covap_interval = settings.forced_merge;
        options.max_merge = std::max(options.max_merge, settings.forced_merge);
        plan = settings.mode == ShimMode::Covap
                   ? planner::make_plan("covap", profile, fabric, options)
                   : planner::plan_generations(profile, fabric, options, settings.forced_merge,
                                               settings.forced_delay);
        note = line("DEFT_PLAN asks for it: %.2f ms predicted, %.2f ms now, bound %.2f ms",
                    plan.predicted.iteration * 1e3, profile.iteration.median * 1e3,
                    plan.predicted.bound * 1e3);
        plan.predicted.verdict = planner::Verdict::Use;
        return plan;
    }
    plan = settings.mode == ShimMode::Covap
               ? planner::make_plan("covap", profile, fabric, options)
               : best_within(profile, fabric, options, settings.combined);
    note = plan.policy + line(": %.2f ms predicted, %.2f ms as it is, bound %.2f ms",
                              plan.predicted.iteration * 1e3, plan.predicted.baseline * 1e3,
                              plan.predicted.bound * 1e3);
    if (settings.unknown_optimizer) {
        DEFT_WARN_ONCE("mode deft: %s", settings.limited);
    } else if (*settings.limited != '\0') {
        note += std::string("; ") + settings.limited;
    }
    return plan;
}

guard::Settings guard_settings() {
    const Config& config = Config::process();
    guard::Settings settings;
    settings.mode = config.is(Key::Guard, "off")    ? guard::Mode::Off
                    : config.is(Key::Guard, "warn") ? guard::Mode::Warn
                                                    : guard::Mode::Strict;
    const executor::Optimizer optimizer = known_optimizer();
    settings.learning_rate = optimizer.learning_rate;
    settings.momentum = optimizer.momentum;
    return settings;
}

executor::Prediction choose_prediction(const planner::Plan& plan) {
    const Config& config = Config::process();
    executor::Prediction prediction;
    std::string problem;
    if (!executor::parse_prediction(config.text(Key::Predict), known_optimizer(),
                                    plan.predicted.max_delay, plan.predicted.max_merge, prediction,
                                    problem)) {
        DEFT_WARN_ONCE("%s; late gradients are delivered as they are", problem.c_str());
        return {};
    }
    return prediction;
}

}  // namespace deft::director
