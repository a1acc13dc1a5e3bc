// SPDX-License-Identifier: Apache-2.0
// The C API of include/deft/deft.h, as far as plans are concerned. In a forked child nothing is
// planned, and a lock may be held for ever: there every function answers without one.
#include <cstring>
#include <new>

#include "base/fork_guard.h"
#include "deft/deft.h"
#include "shim/control/directors.h"
#include "shim/executor/layer_sums.h"
#include "shim/hooks/hook.h"
#include "shim/nccl/sum_mark.h"
#include "shim/settings/companion.h"
#include "shim/settings/optimizer.h"
#include "shim/settings/training.h"

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

DEFT_HOOK int deft_companion_begin(uint32_t interface, const char* who) {
    return in_child() ? DEFT_COMPANION_UNWANTED
                      : deft::director::companion_begin(interface, who != nullptr ? who : "");
}

DEFT_HOOK void deft_companion_end(const char* why) {
    if (!in_child()) {
        deft::director::companion_end(why != nullptr ? why : "");
    }
}

DEFT_HOOK void deft_mark_sum(const void* buffer, uint64_t bytes, uint32_t kind, uint32_t module,
                             uint32_t place, int last) {
    const bool bucket = kind == DEFT_SUM_BUCKET;
    const bool sound =
        bucket ? module > 0 && place < deft::SumMark::kMostPlaces : kind <= DEFT_SUM_COMPRESSED;
    if (in_child() || !sound) {
        return;
    }
    deft::SumMark mark;
    mark.kind = kind;
    if (bucket) {
        mark.module = module;
        mark.place = place;
        mark.last = last != 0;
    }
    deft::mark_next_sum(buffer, bytes, mark);
}

DEFT_HOOK int deft_prove_iteration(uint32_t module) {
    return !in_child() && deft::director::prove_iteration(module) ? 1 : 0;
}

DEFT_HOOK void deft_refuse_proof(uint32_t module, const char* why) {
    if (!in_child()) {
        deft::director::refuse_proof(module, why != nullptr ? why : "");
    }
}

DEFT_HOOK int deft_note_steps(uint32_t module, double rate_curvature, double noise_scale) {
    return !in_child() && deft::director::note_steps(module, rate_curvature, noise_scale) ? 1 : 0;
}

DEFT_HOOK void deft_layers_wait(uint32_t module) {
    if (!in_child()) {
        deft::director::layers_wait(module);
    }
}

DEFT_HOOK int deft_watch_training(uint32_t module) {
    if (in_child() || module == 0 || !deft::director::training_wanted()) {
        return 0;
    }
    const bool late = deft::director::late_in_force();
    return DEFT_TRAINING_LOSS | (late ? DEFT_TRAINING_LATE : 0) |
           (deft::director::norm_wanted(module, late) ? DEFT_TRAINING_NORM : 0);
}

DEFT_HOOK void deft_note_training(uint32_t module, uint64_t iteration, int asked, double loss,
                                  double norm, double rate) {
    if (!in_child() && module > 0 && asked > 0) {
        deft::director::note_training(
            module, {iteration, (asked & DEFT_TRAINING_LATE) != 0, loss, norm, rate});
    }
}

struct deft_sum {
    deft::executor::LeftSum left;
};
// Where there was no memory for another: nobody waits for the sum, and whoever asks must hear that.
static deft_sum lost_sum;

DEFT_HOOK deft_sum_t* deft_take_sum(void) {
    const deft::executor::LeftSum left = deft::executor::take_left_sum();
    if (left.sums == nullptr || in_child()) {
        return nullptr;
    }
    if (deft_sum_t* const sum = new (std::nothrow) deft_sum{left}) {
        return sum;
    }
    left.sums->release();
    return &lost_sum;
}

DEFT_HOOK int deft_wait_sum(deft_sum_t* sum, void* stream, int host) {
    using Wait = deft::executor::LayerSums::Wait;
    if (sum == nullptr || sum == &lost_sum || in_child()) {
        return sum == nullptr ? 0 : -1;
    }
    const deft::executor::LeftSum left = sum->left;
    delete sum;
    const Wait wait = host != 0 ? left.sums->wait_here(left.bucket, left.iteration)
                                : left.sums->wait(left.bucket, left.iteration,
                                                  static_cast<deft::cuda::Stream>(stream));
    left.sums->release();
    switch (wait) {
        case Wait::Waits:
            return 0;
        case Wait::NotSent:
            return 1;
        case Wait::Lost:
            break;
    }
    return -1;
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
