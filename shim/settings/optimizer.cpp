// SPDX-License-Identifier: Apache-2.0
#include "shim/settings/optimizer.h"

#include "base/config.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/mutex.h"

namespace deft::director {
namespace {

struct Word {
    std::string text;  // empty: nothing was said
    executor::Optimizer optimizer;
};

struct Told {
    Mutex mutex;
    Word by_job DEFT_GUARDED_BY(mutex);
    Word by_observer DEFT_GUARDED_BY(mutex);
    bool scaled DEFT_GUARDED_BY(mutex) = false;
    bool clipped DEFT_GUARDED_BY(mutex) = false;
};

Told& told() {
    static auto& told = *new Told;  // never destroyed: threads may outlive exit()
    return told;
}

bool note(Word Told::*whose, std::string_view text) noexcept {
    try {
        executor::Optimizer optimizer;
        std::string problem;
        if (!executor::parse_optimizer(text, optimizer, problem)) {
            return false;
        }
        if (ForkGuard::process().in_child()) {
            return true;  // nothing is planned there, and the lock may be held for ever
        }
        Told& all = told();
        const MutexLock lock(all.mutex);
        Word& word = all.*whose;
        if (word.text != text) {
            word.text = text;
            word.optimizer = optimizer;
            const bool counts = whose == &Told::by_job || all.by_job.text.empty();
            if (counts && Config::process().text(Key::Optimizer).empty()) {
                DEFT_INFO("the job's optimizer: %s", word.text.c_str());
            }
        }
        return true;
    } catch (...) {
        return false;
    }
}

executor::Optimizer named_optimizer(const Told& all) DEFT_REQUIRES(all.mutex) {
    const std::string& set = Config::process().text(Key::Optimizer);
    if (set.empty()) {
        return (all.by_job.text.empty() ? all.by_observer : all.by_job).optimizer;
    }
    executor::Optimizer optimizer;
    std::string problem;
    if (!executor::parse_optimizer(set, optimizer, problem)) {
        DEFT_WARN_ONCE("DEFT_OPTIMIZER: %s; it counts as unknown", problem.c_str());
        return {};
    }
    return optimizer;
}

}  // namespace

bool set_optimizer(std::string_view text) noexcept {
    return note(&Told::by_job, text);
}

bool observe_optimizer(std::string_view text) noexcept {
    return note(&Told::by_observer, text);
}

void set_gradient_scaling(bool scaled) noexcept {
    Told& all = told();
    const MutexLock lock(all.mutex);
    if (all.scaled != scaled) {
        all.scaled = scaled;
        DEFT_INFO("the job %s its gradients", scaled ? "scales" : "no longer scales");
    }
}

void set_gradient_clipping(bool clipped) noexcept {
    Told& all = told();
    const MutexLock lock(all.mutex);
    if (all.clipped != clipped) {
        all.clipped = clipped;
        DEFT_INFO("the job %s its gradients", clipped ? "clips" : "no longer clips");
    }
}

executor::Optimizer known_optimizer() {
    Told& all = told();
    const MutexLock lock(all.mutex);
    executor::Optimizer optimizer = named_optimizer(all);
    optimizer.scaled = all.scaled;
    optimizer.clipped = all.clipped;
    return optimizer;
}

}  // namespace deft::director
