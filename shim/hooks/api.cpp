// SPDX-License-Identifier: Apache-2.0
// The C API of include/deft/deft.h, as far as plans are concerned. In a forked child nothing is
// planned, and a lock may be held for ever: there every function answers without one.
#include <cstring>

#include "base/fork_guard.h"
#include "deft/deft.h"
#include "shim/control/directors.h"
#include "shim/hooks/hook.h"
#include "shim/settings/optimizer.h"

namespace {

bool in_child() noexcept {
    return deft::ForkGuard::process().in_child();
}

}  // namespace

DEFT_HOOK int deft_should_step(void) {
    return in_child() || deft::director::should_step() ? 1 : 0;
}

DEFT_HOOK int deft_flush(void) {
    return in_child() ? 0 : deft::director::flush();
}

DEFT_HOOK int deft_set_optimizer(const char* optimizer) {
    return optimizer != nullptr && deft::director::set_optimizer(optimizer) ? 0 : -1;
}

DEFT_HOOK int deft_observe_optimizer(const char* optimizer) {
    return optimizer != nullptr && deft::director::observe_optimizer(optimizer) ? 0 : -1;
}

DEFT_HOOK void deft_set_gradient_scaling(int scaled) {
    if (!in_child()) {
        deft::director::set_gradient_scaling(scaled != 0);
    }
}

DEFT_HOOK void deft_set_gradient_clipping(int clipped) {
    if (!in_child()) {
        deft::director::set_gradient_clipping(clipped != 0);
    }
}

DEFT_HOOK int deft_stats(deft_stats_t* stats) {
    constexpr std::size_t kFirst = sizeof(std::size_t) + sizeof(std::uint64_t);
    if (stats == nullptr || stats->size < kFirst) {
        return -1;
    }
    deft_stats_t all{};
    all.size = stats->size;
    if (!in_child()) {
        deft::director::add_up(all);
    }
    std::memcpy(stats, &all, stats->size < sizeof(all) ? stats->size : sizeof(all));
    return 0;
}
