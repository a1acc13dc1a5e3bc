// SPDX-License-Identifier: Apache-2.0
// Which halves of the library are at work in this process. The hooks and the plugin each tick their
// own counter; the plugin's init is where a job that bypasses the hooks is noticed, because then no
// hook ever runs.
#pragma once

#include <atomic>
#include <cstdint>

namespace deft {

// The traffic class of the communicators that are the shim's lanes over deft's links. NCCL passes a
// communicator's traffic class to the network plugin (from 2.26 on, to both ends from 2.28 on);
// InfiniBand's are below 256.
inline constexpr int kLaneTrafficClass = 0x4c20;

// Constant-initialised and trivially destroyed: safe before main and after exit. Any thread.
struct Presence {
    std::atomic<std::uint64_t> communicators_seen{0};  // ncclCommInit* and the like that hooks saw
    std::atomic<std::uint64_t> plugin_inits{0};        // times NCCL initialised the plugin
    std::atomic<bool> plugin_refused{false};  // the last of them failed: NCCL uses another network

    // The hooks keep the job's communicators on NCCL's IB. Set before the first of them is made.
    std::atomic<bool> job_on_ib{false};
    // What the plugin shows devices for on such a host; each is set before it is made. A
    // communicator that the hooks leave to deft's links:
    std::atomic<bool> job_on_deft{false};
    // A lane over deft's links:
    std::atomic<bool> lanes_on_deft{false};
    // Any lane that may come: this NCCL asks the plugin at the job's first communicator, whatever
    // network that names, and never again.
    std::atomic<bool> asked_early{false};
    // The plugin has shown none. NCCL uses it no more in this process.
    std::atomic<bool> plugin_declined{false};
    // Why they do not, as far as they know; a literal.
    std::atomic<const char*> not_on_ib{nullptr};

    // Connections that only reserves carry at the moment (plugin/core/path.h, Dialer::reserve()).
    std::atomic<int> on_reserve{0};

    // The hooks may have a say in how NCCL carries out calls (docs/tuner.md). Set before the first
    // communicator is made, and never taken back: ranks count their calls from there on.
    std::atomic<bool> tunes{false};

    static Presence& process() noexcept;

    // NCCL is in this process, and nobody will tell a tuner anything: it is not to see one, because
    // with a tuner it does not do all that it does without (docs/tuner.md).
    bool hides_tuner() const noexcept {
        const bool nccl_is_here = communicators_seen.load(std::memory_order_acquire) != 0 ||
                                  plugin_inits.load(std::memory_order_acquire) != 0;
        return nccl_is_here && !tunes.load(std::memory_order_acquire);
    }

    // Called by the plugin's init, of whatever version. Says once if NCCL is making a communicator
    // that no hook has seen, and why that is likely: the job reaches NCCL by a handle look-up or
    // RTLD_DEEPBIND although the library is preloaded (WARN), or it is not preloaded at all (WARN
    // if DEFT_MODE, wherever it is set, or DEFT_REQUIRE asks for the hooks, else INFO).
    void plugin_initialised() noexcept;
};

// True if the first `symbol` of the global scope is this library's own, as it is under LD_PRELOAD,
// or that of the guest (base/guest.h).
bool preloaded_as(const char* symbol) noexcept;

}  // namespace deft
