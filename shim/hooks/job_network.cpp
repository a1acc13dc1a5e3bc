// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/job_network.h"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/presence.h"
#include "shim/cuda/execution.h"
#include "shim/nccl/config_choices.h"
#include "shim/settings/mode.h"
#include "shim/tuning/job_limits.h"
#include "topology/nccl_settings.h"
#include "topology/rdma.h"

namespace deft::job_network {
namespace {

constexpr int kFirstNamed = 21700;  // release that lets a communicator name its network
// From here on NCCL starts no plugin but the one that is named (src/plugin/net.cc, ncclNetInit).
constexpr int kFirstOnDemand = 22807;
constexpr char kDeft[] = "deft";

// What holds for all communicators of this process.
struct Process {
    bool able = false;  // communicators can be told their network
    const char* why_not = nullptr;
    bool ib_carries = false;  // NCCL's IB, on this host, without being told
    bool shares = false;      // the environment has children share their parents' network
};

bool on(const char* name) {
    const auto value = nccl_setting(name);
    return value && std::atoi(value->c_str()) == 1;
}

// Read once, in the first hook that makes a communicator.
const Process& decided() {
    static const Process process = [] {
        Process made;
        const RdmaChoice& rdma = process_rdma();
        made.ib_carries = rdma.use == RdmaUse::Aside;
        if (!plans(shim_mode())) {
            made.why_not = "mode observe changes nothing";
            return made;
        }
        const auto plugins = nccl_setting("NCCL_NET_PLUGIN");
        const auto net = nccl_setting("NCCL_NET");
        if (net && !net->empty()) {
            made.why_not = "NCCL_NET is set, which rules out lanes";
        } else if (!plugins || !names_deft(*plugins, true)) {
            // Another plugin may be NCCL's choice, and deft's may not be loaded at all.
            made.why_not = "NCCL_NET_PLUGIN does not name deft alone";
        } else {
            made.able = true;
        }
        made.shares =
            on("NCCL_COMM_SPLIT_SHARE_RESOURCES") || on("NCCL_COMM_SHRINK_SHARE_RESOURCES");
        return made;
    }();
    return process;
}

// Whether this library's communicators can be told.
bool can_name(const Hook& hook) {
    return hook.watched() && hook.table() != nullptr && decided().able &&
           hook.table()->version >= kFirstNamed && hook.table()->CommInitRankConfig != nullptr;
}

// The same in a hook that makes one. Says what the plugin may do by it.
bool able(const Hook& hook) {
    if (!hook.watched() || hook.table() == nullptr) {
        return false;
    }
    const Process& process = decided();
    Presence& presence = Presence::process();
    if (!can_name(hook)) {
        presence.not_on_ib.store(process.able
                                     ? "this NCCL cannot be told a communicator's network; 2.17 can"
                                     : process.why_not,
                                 std::memory_order_release);
        return false;
    }
    if (process.ib_carries && !presence.job_on_ib.exchange(true, std::memory_order_acq_rel)) {
        DEFT_INFO(
            "RDMA is active (%s): NCCL's IB carries the job, deft's links serve lanes "
            "(DEFT_RDMA=aside)",
            process_rdma().usable_ports().c_str());
    }
    if (process.ib_carries && hook.table()->version < kFirstOnDemand) {
        presence.asked_early.store(true, std::memory_order_release);
    }
    return true;
}

// The hook's communicator is meant for deft's links.
void expect_on_deft() noexcept {
    Presence::process().job_on_deft.store(true, std::memory_order_release);
}

// A copy of a name that stays; null if there is no memory for it.
const char* kept(const char* name) noexcept {
    try {
        static Mutex mutex;
        // Never destroyed: directors keep them.
        static auto* const names DEFT_PT_GUARDED_BY(mutex) = new std::set<std::string>;
        const MutexLock lock(mutex);
        return names->insert(name).first->c_str();
    } catch (...) {
        return nullptr;
    }
}

// The same of what a configuration chooses; null where it chooses nothing.
const ConfigChoices* kept(const ConfigChoices& choices) noexcept {
    if (choices == ConfigChoices{}) {
        return nullptr;
    }
    try {
        static Mutex mutex;
        static auto* const all DEFT_PT_GUARDED_BY(mutex) = new std::deque<ConfigChoices>;
        const MutexLock lock(mutex);
        const auto found = std::find(all->begin(), all->end(), choices);
        return found != all->end() ? &*found : &all->emplace_back(choices);
    } catch (...) {
        return nullptr;
    }
}

// What the job's own configuration chooses. A limit of one communicator's channels is taken for one
// of all: its children have it too.
const ConfigChoices* choices_in(const deft_nccl_config_t* own) noexcept {
    const ConfigChoices choices = executor::choices_of(own);
    if (choices.min_ctas != ConfigChoices::kUndefined ||
        choices.max_ctas != ConfigChoices::kUndefined) {
        tuning::note_limited_channels();
    }
    return kept(choices);
}

}  // namespace

// True if the job names a network itself, which wins.
bool Config::take_own() noexcept {
    if (own_ == nullptr) {
        return false;
    }
    shares_ = executor::shares(own_);
    const char* const name = executor::network_of(own_);
    network_ = name != nullptr ? kept(name) : nullptr;
    if (name != nullptr && ::strcasecmp(name, kDeft) == 0) {
        expect_on_deft();
    }
    return name != nullptr;
}

void Config::name_ib(const Hook& hook) noexcept {
    changed_ = executor::name_network(own_, hook.table()->version, kIb, bytes_);
    if (changed_) {
        network_ = kIb;
    } else {
        DEFT_WARN_ONCE(
            "a communicator's configuration has an unknown form and is left as it is: NCCL chooses "
            "its network; DEFT_MODE=off leaves all to NCCL");
    }
}

Config::Config(const Hook& hook, const deft_nccl_unique_id_t* id, deft_nccl_config_t* own) noexcept
    : own_(own), choices_(choices_in(own)) {
    try {
        if (!able(hook)) {
            return;
        }
        shares_ = decided().shares;
        if (take_own()) {
            return;
        }
        const bool here = decided().ib_carries;
        const agreement::Maker maker =
            id != nullptr ? agreement::maker_of(*id) : agreement::Maker::Unknown;
        if (maker == agreement::Maker::Unknown ? here : maker == agreement::Maker::OnIb) {
            if (!here) {
                DEFT_WARN_ONCE(
                    "the job's network is NCCL's IB, as on the host that began the communicator, "
                    "but this host has no usable RDMA port (%s); DEFT_RDMA=replace on all hosts "
                    "has deft's links carry the job",
                    process_rdma().reason.c_str());
            }
            name_ib(hook);
        } else if (here) {
            expect_on_deft();
            DEFT_WARN_ONCE(
                "RDMA is active here (%s), but not on the host that began the communicator: deft's "
                "TCP links carry it on all hosts",
                process_rdma().usable_ports().c_str());
        }
    } catch (...) {
        // As the job wants it.
    }
}

Config::Config(const Hook& hook, deft_nccl_config_t* own) noexcept
    : own_(own), choices_(choices_in(own)) {
    try {
        const Communicator* const parent =
            const_cast<Hook&>(hook).communicator().get();  // reading it changes nothing
        if (own == nullptr && parent != nullptr) {
            choices_ = parent->choices.load(std::memory_order_acquire);
        }
        if (!able(hook)) {
            return;
        }
        const char* const inherited =
            parent != nullptr ? parent->network.load(std::memory_order_acquire) : nullptr;
        const bool shared = parent == nullptr || parent->shares.load(std::memory_order_relaxed);
        shares_ = own_ == nullptr ? shared : decided().shares;
        if (take_own()) {
            return;
        }
        if (own_ == nullptr) {
            network_ = inherited;  // NCCL hands on the whole configuration
        } else if (inherited != nullptr &&
                   (::strcasecmp(inherited, kIb) == 0 || (!shared && decided().ib_carries))) {
            name_ib(hook);
        }
    } catch (...) {
    }
}

agreement::Maker made_here(const Hook& hook) noexcept {
    try {
        return !can_name(hook)        ? agreement::Maker::Unknown
               : decided().ib_carries ? agreement::Maker::OnIb
                                      : agreement::Maker::NotOnIb;
    } catch (...) {
        return agreement::Maker::Unknown;
    }
}

namespace {

// NCCL loads and starts the driver in the call that makes communicators; a job may not have before.
void start_driver() {
    if (void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
        if (const auto start = reinterpret_cast<int (*)(unsigned)>(::dlsym(library, "cuInit"))) {
            start(0);
        }
    }
}

// False: NCCL refuses these devices, or says what is wrong with them.
bool contexts_of(const cuda::Driver& driver, int ndev, const int* devices,
                 std::vector<cuda::Context>& contexts) {
    std::vector<int> seen;
    for (int i = 0; i < ndev; ++i) {
        const int device = devices != nullptr ? devices[i] : i;
        const bool twice = std::find(seen.begin(), seen.end(), device) != seen.end();
        seen.push_back(device);
        contexts.push_back(twice || device < 0 ? nullptr : cuda::primary_context(driver, device));
        if (contexts.back() == nullptr) {
            return false;
        }
    }
    return true;
}

}  // namespace

bool init_all(const NcclTable& table, deft_nccl_comm_t* comms, int ndev, const int* devices,
              deft_nccl_config_t* config, int& result) noexcept {
    if (comms == nullptr || ndev < 1 || table.GetUniqueId == nullptr ||
        table.GroupStart == nullptr || table.GroupEnd == nullptr ||
        table.CommInitRankConfig == nullptr) {
        return false;
    }
    try {
        start_driver();
        const cuda::Driver* const driver = cuda::Driver::get();
        std::vector<cuda::Context> contexts;
        if (driver == nullptr || !contexts_of(*driver, ndev, devices, contexts)) {
            return false;
        }
        deft_nccl_unique_id_t id{};
        result = table.GetUniqueId(&id);
        if (result == DEFT_NCCL_SUCCESS) {
            result = table.GroupStart();
        }
        if (result != DEFT_NCCL_SUCCESS) {
            return true;
        }
        int first = DEFT_NCCL_SUCCESS;
        for (int i = 0; i < ndev; ++i) {
            const cuda::Current current(*driver, contexts[static_cast<std::size_t>(i)]);
            const int made = current ? table.CommInitRankConfig(&comms[i], ndev, id, i, config)
                                     : static_cast<int>(DEFT_NCCL_UNHANDLED_CUDA_ERROR);
            if (first == DEFT_NCCL_SUCCESS && made != DEFT_NCCL_IN_PROGRESS) {
                first = made;
            }
        }
        result = table.GroupEnd();
        if (result == DEFT_NCCL_SUCCESS) {
            result = first;
        }
        return true;
    } catch (...) {
        return false;
    }
}

}  // namespace deft::job_network
