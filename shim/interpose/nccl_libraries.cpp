// SPDX-License-Identifier: Apache-2.0
#include "shim/interpose/nccl_libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "topology/base/config.h"
#include "topology/base/log.h"

namespace deft {
namespace {

constexpr std::size_t kMaxLibraries = 16;
constexpr std::size_t kMaxCallers = 512;  // call sites; beyond them each call pays the full search
constexpr std::size_t kProbes = 8;

struct KnownCaller {
    const void* caller;
    const NcclTable* table;
};

// Constant-initialised, trivially destroyed: usable before main and after exit.
struct State {
    std::array<std::atomic<const NcclTable*>, kMaxLibraries> tables{};
    std::atomic<std::size_t> count{0};
    std::atomic<const NcclTable*> for_all{
        nullptr};  // found by a way that is the same for all callers
    std::array<std::atomic<const KnownCaller*>, kMaxCallers> callers{};
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

// NCCL as the caller's module sees it: its dependencies, or NCCL linked statically into it. This is
// how it is found when the module was opened RTLD_LOCAL, as Python opens extension modules.
const NcclTable* from_module_of(const void* caller) {
    Dl_info info;
    if (caller == nullptr || ::dladdr(caller, &info) == 0 || info.dli_fbase == own_base()) {
        return nullptr;
    }
    void* const handle = ::dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    const NcclTable* const table = from_handle(handle);
    if (handle != nullptr) {
        ::dlclose(handle);  // the table holds its own reference on the library that has NCCL
    }
    return table;
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

const NcclTable* remember(const void* caller, const NcclTable* table) {
    const auto hash = (reinterpret_cast<std::uintptr_t>(caller) * 0x9E3779B97F4A7C15u) >> 32;
    const auto* const node = new KnownCaller{caller, table};
    for (std::size_t probe = 0; probe < kProbes; ++probe) {
        const KnownCaller* expected = nullptr;
        if (g_state.callers[(hash + probe) % kMaxCallers].compare_exchange_strong(
                expected, node, std::memory_order_acq_rel) ||
            expected->caller == caller) {
            if (expected != nullptr) {
                delete node;
            }
            return table;
        }
    }
    delete node;
    return table;
}

const NcclTable* recall(const void* caller) {
    const auto hash = (reinterpret_cast<std::uintptr_t>(caller) * 0x9E3779B97F4A7C15u) >> 32;
    for (std::size_t probe = 0; probe < kProbes; ++probe) {
        const KnownCaller* known =
            g_state.callers[(hash + probe) % kMaxCallers].load(std::memory_order_acquire);
        if (known == nullptr) {
            return nullptr;
        }
        if (known->caller == caller) {
            return known->table;
        }
    }
    return nullptr;
}

const NcclTable* search(const void* caller) {
    const NcclTable* table = from_override();
    if (table == nullptr) {
        // The next object in the global scope: where the call would have gone without us.
        table = from_handle(RTLD_NEXT);
    }
    if (table != nullptr) {
        g_state.for_all.store(table, std::memory_order_release);
        return table;
    }
    // The caller's module before a libnccl.so.2 found by name: with two copies in the process the
    // name finds the older one, the module the one its calls belong to.
    table = from_module_of(caller);
    if (table == nullptr) {
        if (void* const handle = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD)) {
            table = from_handle(handle);
            ::dlclose(handle);
        }
    }
    if (table == nullptr) {
        table = from_loaded_objects();
    }
    if (table == nullptr) {
        if (void* const handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) {
            table = from_handle(handle);
            if (table == nullptr) {
                ::dlclose(handle);
            }
        }
    }
    if (table == nullptr) {
        DEFT_WARN_ONCE(
            "no NCCL library found in this process or by the name libnccl.so.2; NCCL calls "
            "fail. Set LD_LIBRARY_PATH to the folder that has it, or DEFT_NCCL_LIB to its path");
        return nullptr;
    }
    return remember(caller, table);
}

}  // namespace

NcclLibraries& NcclLibraries::process() {
    static constinit NcclLibraries libraries;
    return libraries;
}

const NcclTable* NcclLibraries::for_caller(const void* caller) noexcept {
    if (const NcclTable* table = g_state.for_all.load(std::memory_order_acquire)) {
        return table;
    }
    if (const NcclTable* table = recall(caller)) {
        return table;
    }
    try {
        return search(caller);
    } catch (...) {
        return sole();
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
