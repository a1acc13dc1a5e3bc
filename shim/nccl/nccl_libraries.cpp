// SPDX-License-Identifier: Apache-2.0
#include "shim/nccl/nccl_libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/hot_path.h"
#include "base/log.h"
#include "shim/nccl/calling_module.h"

namespace deft {
namespace {

constexpr std::size_t kMaxLibraries = 16;
constexpr std::size_t kMaxCallers = 512;  // call sites; beyond them each call looks at the modules
constexpr std::size_t kProbes = 8;
constexpr std::size_t kMaxModules = 256;  // beyond them each call pays the full search

using Answer = NcclLibraries::Answer;
using Certainty = NcclLibraries::Certainty;

struct KnownModule {
    CallingModule module;
    Answer answer;
    ModulePrint print;
    // Set when another module is found in its place, or what the answer was drawn from is not so.
    mutable std::atomic<bool> outdated{false};

    bool holds_for(const void* caller) const noexcept {
        return !outdated.load(std::memory_order_relaxed) && print.fits(caller);
    }
};

// A call site. The module is stored after the caller, so it may be missing for a moment.
struct KnownCaller {
    std::atomic<const void*> caller{nullptr};
    std::atomic<const KnownModule*> module{nullptr};
};

// Constant-initialised, trivially destroyed: usable before main and after exit.
struct State {
    std::array<std::atomic<const NcclTable*>, kMaxLibraries> tables{};
    std::atomic<std::size_t> count{0};
    std::atomic<const NcclTable*> for_all{nullptr};  // DEFT_NCCL_LIB
    std::array<KnownCaller, kMaxCallers> callers{};
    std::array<std::atomic<const KnownModule*>, kMaxModules> modules{};
    std::atomic<bool> override_failed{false};
};
constinit State g_state;

// Keeps the first table of each library and returns it.
const NcclTable* publish(const NcclTable& candidate) {
    for (;;) {
        const std::size_t count = g_state.count.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < count; ++i) {
            const NcclTable* known = g_state.tables[i].load(std::memory_order_acquire);
            if (known != nullptr && known->AllReduce == candidate.AllReduce) {
                return known;
            }
        }
        if (count == kMaxLibraries) {
            DEFT_WARN_ONCE(
                "more than %zu NCCL libraries in one process; calls for the others go to %s",
                kMaxLibraries, g_state.tables[0].load()->path);
            return g_state.tables[0].load();
        }
        auto* const made = new NcclTable(candidate);
        if (made->GetVersion != nullptr) {
            made->GetVersion(&made->version);
        }
        const NcclTable* expected = nullptr;
        if (g_state.tables[count].compare_exchange_strong(expected, made,
                                                          std::memory_order_acq_rel)) {
            g_state.count.store(count + 1, std::memory_order_release);
            DEFT_INFO("forwarding to NCCL %d at %s", made->version, made->path);
            return made;
        }
        delete made;
        // Another thread took the slot; it publishes the count next.
        while (g_state.count.load(std::memory_order_acquire) == count) {
        }
    }
}

const NcclTable* from_handle(void* handle) {
    NcclTable table;
    return handle != nullptr && load_table(handle, table) ? publish(table) : nullptr;
}

const NcclTable* from_override() {
    const std::string& path = Config::process().text(Key::NcclLibrary);
    if (path.empty()) {
        return nullptr;
    }
    const NcclTable* table = nullptr;
    std::string why = "it has no ncclAllReduce";
    if (void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        table = from_handle(handle);
    } else {
        why = ::dlerror();
    }
    if (table == nullptr) {
        g_state.override_failed = true;
        DEFT_WARN_ONCE(
            "DEFT_NCCL_LIB=%s cannot be used (%s); looking for NCCL in the process instead",
            path.c_str(), why.c_str());
    }
    return table;
}

// The first in the global scope.
const NcclTable* from_global_scope() {
    const NcclTable* table = nullptr;
    if (void* const program = ::dlopen(nullptr, RTLD_LAZY)) {
        table = from_handle(program);
        ::dlclose(program);
    }
    return table != nullptr ? table : from_handle(RTLD_NEXT);  // it has the plain names only
}

// NCCL as the module itself sees it: its dependencies, or NCCL linked statically into it. This is
// how it is found when the module was opened RTLD_LOCAL, as Python opens extension modules.
const NcclTable* from_module(const CallingModule& module) {
    void* const handle =
        module.is_program() ? nullptr : ::dlopen(module.map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    const NcclTable* const table = from_handle(handle);
    if (handle != nullptr) {
        ::dlclose(handle);  // the table holds its own reference on the library that has NCCL
    }
    return table;
}

// Where the loader sends the module's calls, of the first library in the global scope and of that
// which the module depends on itself. Null if that gives none.
const NcclTable* bound_to(const CallingModule& module, const NcclTable* global,
                          const NcclTable* own) {
    if (global == nullptr || global == own || module.binding == Binding::None) {
        return global != nullptr ? global : own;
    }
    if (module.binding == Binding::Lazy && (own == nullptr || !module.contains(own->base))) {
        return global;  // the loader looks now
    }
    // One that has come into the global scope after the module is not seen by it. Of a module in
    // that scope the dependencies are there too: what stands before them was there in time.
    const bool in_time = module.loaded_after(global->base) || module.in_global_scope();
    return in_time ? global : own;
}

int collect_names(dl_phdr_info* info, std::size_t, void* argument) {
    auto& names = *static_cast<std::vector<std::string>*>(argument);
    if (info->dlpi_name != nullptr && info->dlpi_name[0] != '\0') {
        if (std::strstr(info->dlpi_name, "libnccl.so") != nullptr) {
            names.insert(names.begin(), info->dlpi_name);
        } else {
            names.emplace_back(info->dlpi_name);
        }
    }
    return 0;
}

// Any loaded object that has the functions; those named libnccl.so first.
const NcclTable* from_loaded_objects() {
    std::vector<std::string> names;
    ::dl_iterate_phdr(collect_names, &names);
    for (const std::string& name : names) {
        if (void* const handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
            const NcclTable* const table = from_handle(handle);
            ::dlclose(handle);
            if (table != nullptr) {
                return table;
            }
        }
    }
    return nullptr;
}

std::size_t place_of(const void* caller) {
    return (reinterpret_cast<std::uintptr_t>(caller) * 0x9E3779B97F4A7C15u) >> 32;
}

// Allocates nothing: a call site may be new at any time.
void remember(const void* caller, const KnownModule* module) {
    const std::size_t place = place_of(caller);
    for (std::size_t probe = 0; probe < kProbes; ++probe) {
        KnownCaller& known = g_state.callers[(place + probe) % kMaxCallers];
        const void* expected = nullptr;
        if (known.caller.compare_exchange_strong(expected, caller, std::memory_order_acq_rel) ||
            expected == caller) {
            known.module.store(module, std::memory_order_release);
            return;
        }
    }
}

const KnownModule* recall(const void* caller) {
    const std::size_t place = place_of(caller);
    for (std::size_t probe = 0; probe < kProbes; ++probe) {
        const KnownCaller& known = g_state.callers[(place + probe) % kMaxCallers];
        const void* const there = known.caller.load(std::memory_order_acquire);
        if (there == caller) {
            const KnownModule* const module = known.module.load(std::memory_order_acquire);
            return module != nullptr && module->holds_for(caller) ? module : nullptr;
        }
        if (there == nullptr) {
            return nullptr;
        }
    }
    return nullptr;
}

const KnownModule* recall_module(const void* caller) {
    for (const auto& slot : g_state.modules) {
        const KnownModule* const known = slot.load(std::memory_order_acquire);
        if (known == nullptr) {
            return nullptr;
        }
        if (known->module.contains(caller)) {
            if (known->holds_for(caller)) {
                return known;
            }
            known->outdated.store(true, std::memory_order_relaxed);
        }
    }
    return nullptr;
}

// That all modules go to one library is no longer so, or of others, once one goes elsewhere.
void outdate_common(const NcclTable* other) {
    for (const auto& slot : g_state.modules) {
        const KnownModule* const known = slot.load(std::memory_order_acquire);
        if (known == nullptr) {
            return;
        }
        if (known->answer.certainty == Certainty::Common && known->answer.table != other) {
            known->outdated.store(true, std::memory_order_relaxed);
        }
    }
}

// The first decision on a module stays: two threads may have come to different ones. Null if there
// is no room for it.
const KnownModule* remember(const CallingModule& module, const Answer& answer) {
    const auto* const node = new KnownModule{module, answer, ModulePrint(module)};
    if (answer.certainty == Certainty::Bound) {
        outdate_common(answer.table);
    }
    for (auto& slot : g_state.modules) {
        const KnownModule* expected = nullptr;
        if (slot.compare_exchange_strong(expected, node, std::memory_order_acq_rel)) {
            return node;
        }
        if (expected->module.low == module.low && !expected->outdated) {
            delete node;
            return expected;
        }
    }
    delete node;
    return nullptr;
}

const NcclTable* from_name(int flags) {
    void* const handle = ::dlopen("libnccl.so.2", flags);
    const NcclTable* const table = from_handle(handle);
    if (handle != nullptr && (table == nullptr || (flags & RTLD_NOLOAD) != 0)) {
        ::dlclose(handle);
    }
    return table;
}

// For a module whose own references lead nowhere.
const NcclTable* likeliest() {
    const NcclTable* table = from_name(RTLD_LAZY | RTLD_NOLOAD);
    if (table == nullptr) {
        table = from_loaded_objects();
    }
    if (table == nullptr) {
        table = from_name(RTLD_NOW | RTLD_LOCAL);
    }
    if (table == nullptr) {
        DEFT_WARN_ONCE(
            "no NCCL library found in this process or by the name libnccl.so.2; NCCL calls "
            "fail. Set LD_LIBRARY_PATH to the folder that has it, or DEFT_NCCL_LIB to its path");
    }
    return table;
}

// As the loader decides it; unbound where the module does not refer to NCCL.
Answer decide(const CallingModule& module) {
    const NcclTable* const table = bound_to(module, from_global_scope(), from_module(module));
    const bool bound = table != nullptr && module.binding != Binding::None;
    return {table, bound ? Certainty::Bound : Certainty::Likely};
}

// A module that does not refer to NCCL calls through one that does (whose last act is the call, so
// that the return address is not its own), or through a pointer that it has looked up. Null if
// those that do go to different libraries, or there are none.
const NcclTable* where_others_go() {
    const NcclTable* common = nullptr;
    for (const void* const address : CallingModule::bound_at_load()) {
        const CallingModule module = CallingModule::of(address);
        if (module.map == nullptr || module.contains(own_base())) {
            continue;
        }
        const KnownModule* const known = recall_module(address);
        const Answer answer = known != nullptr ? known->answer : decide(module);
        if (known == nullptr && answer.table != nullptr) {
            remember(module, answer);
        }
        if (answer.certainty != Certainty::Bound) {
            continue;
        }
        if (common != nullptr && common != answer.table) {
            return nullptr;
        }
        common = answer.table;
    }
    return common;
}

Answer search(const void* caller) {
    if (const NcclTable* const table = from_override()) {
        g_state.for_all.store(table, std::memory_order_release);
        return {table, Certainty::Bound};
    }
    CallingModule module = CallingModule::of(caller);
    const bool known = module.map != nullptr && !module.contains(own_base());
    Answer answer;
    if (known && module.binding != Binding::None) {
        answer = decide(module);
    } else if (const NcclTable* const common = where_others_go()) {
        answer = {common, Certainty::Common};
    } else {
        answer.table = from_global_scope();
    }
    if (answer.table == nullptr) {
        answer = {likeliest(), Certainty::Likely};
    }
    if (answer.table == nullptr) {
        return answer;
    }
    if (module.map == nullptr) {  // code that no loader has loaded
        module.low = reinterpret_cast<std::uintptr_t>(caller);
        module.high = module.low + 1;
    }
    const KnownModule* const kept = remember(module, answer);
    if (kept == nullptr) {
        return answer;  // searched for again at the next call from there
    }
    remember(caller, kept);
    return kept->answer;
}

}  // namespace

NcclLibraries& NcclLibraries::process() {
    static constinit NcclLibraries libraries;
    return libraries;
}

DEFT_NO_ARRAYS Answer NcclLibraries::for_caller(const void* caller) noexcept {
    if (const NcclTable* table = g_state.for_all.load(std::memory_order_acquire)) {
        return {table, Certainty::Bound};
    }
    if (const KnownModule* const known = recall(caller)) {
        return known->answer;
    }
    try {
        if (const KnownModule* const known = recall_module(caller)) {
            remember(caller, known);
            return known->answer;
        }
        return search(caller);
    } catch (...) {
        return {sole(), Certainty::Likely};
    }
}

const NcclTable* NcclLibraries::sole() const noexcept {
    return size() == 1 ? at(0) : nullptr;
}

std::size_t NcclLibraries::size() const noexcept {
    return g_state.count.load(std::memory_order_acquire);
}

const NcclTable* NcclLibraries::at(std::size_t index) const noexcept {
    return g_state.tables[index].load(std::memory_order_acquire);
}

bool NcclLibraries::override_failed() const noexcept {
    return g_state.override_failed;
}

}  // namespace deft
