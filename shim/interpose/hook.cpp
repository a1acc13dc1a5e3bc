// SPDX-License-Identifier: Apache-2.0
#include "shim/interpose/hook.h"

#include "shim/interpose/mode.h"
#include "topology/base/fork_guard.h"
#include "topology/base/log.h"

namespace deft {
namespace {

thread_local unsigned t_depth = 0;

constexpr const char* since(Function function) {
    constexpr const char* releases[] = {
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) since,
#include "shim/interpose/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
    };
    return releases[static_cast<std::size_t>(function)];
}

}  // namespace

Hook::Hook(Function function, const void* caller) noexcept
    : function_(function), table_(NcclLibraries::process().for_caller(caller)) {
    watched_ = t_depth++ == 0 && table_ != nullptr && shim_mode() != ShimMode::Off &&
               !ForkGuard::process().in_child();
}

Hook::Hook(Function function, deft_nccl_comm_t comm, const void* caller) noexcept
    : function_(function), communicator_(Registry::process().find(comm)) {
    if (communicator_) {
        table_ = communicator_->table.load(std::memory_order_acquire);
    } else {
        table_ = NcclLibraries::process().for_caller(caller);
    }
    watched_ = t_depth++ == 0 && table_ != nullptr && shim_mode() != ShimMode::Off &&
               !ForkGuard::process().in_child();
}

Hook::Hook(Function function, CommunicatorPin&& communicator, const NcclTable* table) noexcept
    : function_(function), table_(table), communicator_(std::move(communicator)), watched_(true) {
    ++t_depth;
}

Hook::~Hook() {
    --t_depth;
}

int Hook::unavailable() const noexcept {
    if (table_ == nullptr) {
        return DEFT_NCCL_SYSTEM_ERROR;  // said where the search failed
    }
    static std::atomic<bool> said[kFunctions];
    if (!said[static_cast<std::size_t>(function_)].exchange(true)) {
        DEFT_WARN("%s (NCCL %d) has no %s, which NCCL has since %s; the call fails", table_->path,
                  table_->version, function_name(function_), since(function_));
    }
    return DEFT_NCCL_INVALID_USAGE;
}

}  // namespace deft
