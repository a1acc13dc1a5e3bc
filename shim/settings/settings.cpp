// SPDX-License-Identifier: Apache-2.0
#include "shim/settings/settings.h"

#include <algorithm>
#include <cstdio>

#include "base/config.h"
#include "base/log.h"
#include "shim/settings/companion.h"
#include "shim/settings/optimizer.h"

namespace deft::director {
namespace {

// Settings that decide what is done with a call: ranks that differ in one would part ways.
constexpr Key kAgreed[] = {Key::Mode,   Key::Gradients,      Key::MaxDelay, Key::MaxMerge,
                           Key::WarmUp, Key::Plan,           Key::Predict,  Key::Optimizer,
                           Key::Guard,  Key::MaxShadowBytes, Key::Lanes,    Key::LaneCtas,
                           Key::Merge,  Key::Tuner};

// What layers wait for that wait for their own, by the planner's policies; "best" is all of them.
bool names_layer_policy(const std::string& text) {
    return text == "bytescheduler" || text == "us-byte" || text == "dear" || text == "best";
}

// "delay1", "delay1-tail", "merge2", "merge2-delay1", "covap4", "deft"; Config has checked the
// form. A plan of the other mode is not for this one. Of DeFT's own the caps say how late and how
// merged.
void read_forced(const std::string& text, Settings& settings) {
    if (names_layer_policy(text)) {
        DEFT_WARN_ONCE("DEFT_PLAN=%s is a plan of DEFT_MODE=exact and is not carried out",
                       text.c_str());
        return;
    }
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
    if (text == "deft") {
        settings.forced_queues = true;
        settings.forced_delay = settings.max_delay;
        settings.forced_merge = std::max(settings.max_merge, 1U);
        return;
    }
    if (!covap && std::sscanf(text.c_str(), "merge%u-delay%u", &merge, &delay) < 1) {
        merge = 1;
        std::sscanf(text.c_str(), "delay%u", &delay);
    }
    settings.forced_delay = delay;
    settings.forced_merge = merge;
    settings.forced_tail = text == "delay1-tail";
}

bool own(const Config& config, Key key) {
    return config.setting(key).source != ValueSource::Default;
}

int limit_of_own_network(const Config& config) {
    const bool set = config.setting(Key::LaneCtas).source != ValueSource::Default;
    return set ? static_cast<int>(config.integer(Key::LaneCtas)) : 0;
}

// What an optimizer bears, as far as it was measured (docs/accuracy.md).
struct Borne {
    bool measured = false;
    bool delay = false;
    bool merging = false;
};

// A late gradient is predicted from momentum; without, nothing makes up for the delay, and
// Nesterov's loses accuracy all the same. A sum of two is a step of twice the length, which SGD
// bears neither without momentum nor with momentum that does not look ahead.
Borne borne_by(const executor::Optimizer& optimizer) {
    const bool adaptive = optimizer.family == executor::Optimizer::Family::Adaptive;
    const bool nesterov = optimizer.family == executor::Optimizer::Family::Sgd &&
                          optimizer.nesterov && optimizer.momentum > 0;
    Borne borne;
    borne.measured = optimizer.measured && !optimizer.clipped;
    const bool with_momentum = borne.measured && optimizer.momentum > 0;
    borne.delay = with_momentum && !nesterov;
    borne.merging = with_momentum && (adaptive || nesterov);
    return borne;
}

const char* why_unmeasured(const executor::Optimizer& optimizer) {
    if (!optimizer.known()) {
        return "the optimizer is not known, so gradients are neither delayed nor merged; set "
               "DEFT_OPTIMIZER (adamw, sgd:momentum=0.9), or the caps DEFT_MAX_DELAY and "
               "DEFT_MAX_MERGE";
    }
    return optimizer.clipped
               ? "the job clips its gradients, which was not measured with late or merged ones, "
                 "so they are neither; set the caps DEFT_MAX_DELAY and DEFT_MAX_MERGE to do it "
                 "all the same (docs/accuracy.md)"
               : "late and merged gradients were not measured with this optimizer, so they are "
                 "neither; set the caps DEFT_MAX_DELAY and DEFT_MAX_MERGE to do it all the same "
                 "(docs/accuracy.md)";
}

}  // namespace

const char* untrusted() {
    const bool asked = shim_mode() >= ShimMode::Deft;
    return asked && !Config::process().is(Key::Gradients, "trust") && !companion_proves()
               ? "nothing proves that the large sums of this job are gradients, so none is "
                 "delayed, merged or filtered"
               : nullptr;
}

bool layers_may_wait() {
    return shim_mode() == ShimMode::Exact && !Config::process().is(Key::Layerwise, "off");
}

ShimMode planning_mode() {
    return untrusted() != nullptr ? ShimMode::Exact : shim_mode();
}

bool tuner_allowed() {
    return !Config::process().is(Key::Tuner, "off");
}

bool tuner_may_reorder() {
    return Config::process().is(Key::Tuner, "auto");
}

void limit_by_optimizer(const executor::Optimizer& optimizer, bool own_delay, bool own_merge,
                        Settings& settings) {
    settings.combined = own_delay && own_merge;
    const Borne borne = borne_by(optimizer);
    if (!own_delay && !borne.delay) {
        settings.max_delay = 0;
    }
    if (!own_merge && !borne.merging) {
        settings.max_merge = 1;
    }
    const bool known = optimizer.known() && borne.measured;
    settings.unmeasured = !known && !own_delay && !own_merge;
    if (settings.unmeasured) {
        settings.limited = why_unmeasured(optimizer);
    } else if (!borne.merging || !borne.delay) {
        settings.limited =
            "the caps that are not set are lowered to what the optimizer bears "
            "(docs/accuracy.md)";
    }
}

bool cap_named(const Config& config) {
    const bool plan = !config.is(Key::Plan, "auto") && !names_layer_policy(config.text(Key::Plan));
    return plan || (own(config, Key::MaxDelay) && config.integer(Key::MaxDelay) > 0) ||
           (own(config, Key::MaxMerge) && config.integer(Key::MaxMerge) > 1);
}

Settings Settings::process() {
    const Config& config = Config::process();
    Settings settings;
    settings.mode = planning_mode();
    settings.warm_up = static_cast<std::uint64_t>(config.integer(Key::WarmUp));
    settings.lane_ctas = static_cast<int>(config.integer(Key::LaneCtas));
    settings.own_lane_ctas = limit_of_own_network(config);
    settings.max_shadow_bytes = static_cast<std::uint64_t>(config.integer(Key::MaxShadowBytes));
    if (settings.mode >= ShimMode::Deft) {
        settings.max_delay = static_cast<std::uint32_t>(config.integer(Key::MaxDelay));
        settings.max_merge = static_cast<std::uint32_t>(config.integer(Key::MaxMerge));
        settings.turns = config.is(Key::Merge, "turns");
        settings.noise_scale = config.real(Key::NoiseScale);
        settings.age_price = config.real(Key::AgePrice);
        settings.age_price_named = own(config, Key::AgePrice);
        read_forced(config.text(Key::Plan), settings);
        const bool trusted = config.is(Key::Gradients, "trust");
        settings.rate_unknown = !trusted && !cap_named(config);
        // Proof says nothing about the learning rate, so a cap that nobody has set allows nothing.
        if (!trusted && !own(config, Key::MaxDelay)) {
            settings.max_delay = 0;
        }
        if (!trusted && !own(config, Key::MaxMerge)) {
            settings.max_merge = 1;
        }
        settings.delay_cap = settings.max_delay;
        settings.merge_cap = settings.max_merge;
        if (settings.mode == ShimMode::Deft && settings.forced_merge == 0) {
            limit_by_optimizer(known_optimizer(), own(config, Key::MaxDelay),
                               own(config, Key::MaxMerge), settings);
        }
    } else {
        settings.warm_up = 0;  // nothing is late: nothing to warm up for
        if (names_layer_policy(config.text(Key::Plan))) {
            settings.policy = config.text(Key::Plan);
        }
    }
    return settings;
}

std::string Settings::terms() {
    return terms(Config::process());
}

std::string Settings::terms(const Config& config) {
    std::string terms;
    for (const Key key : kAgreed) {
        terms += terms.empty() ? "" : " ";
        terms += variable(key).name;
        terms += "=" + config.text(key);
        if (key == Key::LaneCtas) {
            // The job's own network is limited where the value is set, though to the default.
            terms += " DEFT_LANE_CTAS[own]=" + std::to_string(limit_of_own_network(config));
        }
    }
    return terms;
}

executor::CompileOptions compile_options(const Settings& settings,
                                         const executor::Prediction& prediction) {
    executor::CompileOptions compile;
    compile.history = prediction.history();
    compile.max_delay = std::max(settings.delay_cap, settings.forced_delay);
    compile.max_merge = std::max(settings.merge_cap, settings.forced_merge);
    compile.residual = settings.mode == ShimMode::Covap;
    compile.delay_half = settings.forced_merge > 0;
    compile.layers = layers_may_wait();
    return compile;
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
