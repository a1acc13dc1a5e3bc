// SPDX-License-Identifier: Apache-2.0
#include "shim/settings/companion.h"

#include <atomic>

#include "base/config.h"
#include "base/log.h"
#include "base/mutex.h"
#include "shim/nccl/sum_mark.h"
#include "shim/settings/latest_modules.h"
#include "shim/settings/mode.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

// So many iterations in a row have to be plain. The companion looks closely at the first ones.
constexpr std::uint64_t kPlainIterations = 6;
constexpr std::size_t kMostModules = 256;
constexpr const char* kNoCompanion =
    "nothing proves that the large sums of this job are gradients (there is no companion in it: "
    "docs/companion.md)";

struct Module {
    std::uint64_t plain = 0;  // iterations
    bool layers = false;
    bool measuring = false;  // its steps, for the first time
    std::optional<MeasuredSteps> steps;
    std::string refused;  // why; "": it is not
};

struct Told {
    Mutex mutex;
    std::string name DEFT_GUARDED_BY(mutex);
    std::string ended DEFT_GUARDED_BY(mutex);  // why
    LatestModules<Module, kMostModules> modules DEFT_GUARDED_BY(mutex);
    std::atomic<bool> proves{false};
};

Told& told() {
    static auto& told = *new Told;  // never destroyed: threads may outlive exit()
    return told;
}

}  // namespace

int companion_begin(std::uint32_t interface, std::string_view who) noexcept {
    if (interface != DEFT_COMPANION_INTERFACE && interface != DEFT_COMPANION_INTERFACE_BEFORE) {
        return -1;
    }
    if (Config::process().is(Key::Companion, "off")) {
        return DEFT_COMPANION_UNWANTED;
    }
    if (shim_mode() < ShimMode::Deft && !layers_may_wait()) {
        return DEFT_COMPANION_UNWANTED;
    }
    if (shim_mode() >= ShimMode::Deft && Config::process().is(Key::Gradients, "trust")) {
        return DEFT_COMPANION_OPTIMIZER;
    }
    try {
        Told& all = told();
        const MutexLock lock(all.mutex);
        all.name = who;
        if (layers_may_wait()) {
            return DEFT_COMPANION_LAYERS;
        }
        all.proves.store(all.ended.empty(), std::memory_order_release);
        return DEFT_COMPANION_PROOF;
    } catch (...) {
        return DEFT_COMPANION_UNWANTED;
    }
}

// Calls without a mark are nothing strange from here on. What is in force ends on all ranks alike,
// because this one does not vouch for it.
void companion_end(std::string_view why) noexcept {
    end_marks();
    try {
        Told& all = told();
        const MutexLock lock(all.mutex);
        if (all.ended.empty()) {
            all.ended = why.empty() ? "the companion has stood down" : why;
            DEFT_WARN("companion: it stands down: %s", all.ended.c_str());
        }
    } catch (...) {
    }
}

bool prove_iteration(std::uint32_t module) noexcept {
    try {
        Told& all = told();
        const MutexLock lock(all.mutex);
        const bool proven = ++all.modules.of(module).plain >= kPlainIterations;
        return !proven || cap_named(Config::process());
    } catch (...) {
        return false;
    }
}

void layers_wait(std::uint32_t number) noexcept {
    try {
        Told& all = told();
        const MutexLock lock(all.mutex);
        Module& module = all.modules.of(number);
        module.layers = true;
        module.plain = kPlainIterations;
    } catch (...) {
    }
}

bool note_steps(std::uint32_t number, double rate_curvature, double noise_scale) noexcept {
    try {
        Told& all = told();
        const MutexLock lock(all.mutex);
        Module& module = all.modules.of(number);
        // A plan that the operator names is not priced, and where no cap is named nothing is late.
        const bool priced = Config::process().is(Key::Plan, "auto") && cap_named(Config::process());
        module.measuring = rate_curvature < 0 && priced;
        module.steps.reset();
        if (rate_curvature >= 0) {
            module.steps = {rate_curvature, noise_scale};
            DEFT_INFO("companion: module %u: rate x curvature %.3g, noise scale %.3g", number,
                      rate_curvature, noise_scale);
        }
        return priced;
    } catch (...) {
        return false;
    }
}

void refuse_proof(std::uint32_t number, std::string_view why) noexcept {
    try {
        Told& all = told();
        const MutexLock lock(all.mutex);
        Module& module = all.modules.of(number);
        if (module.refused.empty()) {
            module.refused = why.empty() ? "the companion refuses it" : why;
            DEFT_INFO("companion: module %u: %s", number, module.refused.c_str());
        }
    } catch (...) {
    }
}

bool companion_proves() noexcept {
    return told().proves.load(std::memory_order_acquire);
}

std::string companion_name() {
    Told& all = told();
    const MutexLock lock(all.mutex);
    return all.name;
}

ModuleProof module_proof(std::uint32_t number) {
    Told& all = told();
    const MutexLock lock(all.mutex);
    ModuleProof proof;
    if (all.name.empty()) {
        proof.why = kNoCompanion;
        return proof;
    }
    if (!all.ended.empty()) {
        proof.why = all.ended;
        return proof;
    }
    const Module* const found = all.modules.find(number);
    const Module module = found != nullptr ? *found : Module{};
    proof.why = module.refused;
    proof.pending = module.refused.empty() && (module.plain < kPlainIterations || module.measuring);
    proof.holds = module.refused.empty() && !proof.pending;
    proof.layers = proof.holds && module.layers;
    proof.steps = module.steps;
    if (proof.pending) {
        proof.why = module.plain < kPlainIterations
                        ? "the companion has not seen enough iterations yet"
                        : "the curvature along the job's steps has not been measured yet";
    }
    return proof;
}

}  // namespace deft::director
