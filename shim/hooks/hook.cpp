// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/hook.h"

#include <algorithm>
#include <iterator>

#include "base/fork_guard.h"
#include "base/hot_path.h"
#include "base/log.h"
#include "shim/hooks/group.h"
#include "shim/hooks/unfinished_children.h"
#include "shim/settings/mode.h"

namespace deft {
namespace {

thread_local unsigned t_depth = 0;
thread_local const NcclTable* t_library = nullptr;  // of the last call that was sure of it

// Not what only asks, nor memory that is of no communicator: such a call may be about another
// library than the group is.
bool belongs_to_group(Function function) {
    constexpr Function kOfNone[] = {Function::GetVersion,
                                    Function::GetUniqueId,
                                    Function::GetErrorString,
                                    Function::GetLastError,
                                    Function::CommGetAsyncError,
                                    Function::MemAlloc,
                                    Function::MemFree,
                                    Function::GetPeerDevicePointer,
                                    Function::GetLsaMultimemDevicePointer};
    return std::find(std::begin(kOfNone), std::end(kOfNone), function) == std::end(kOfNone);
}

constexpr const char* since(Function function) {
    constexpr const char* releases[] = {
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) since,
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
    };
    return releases[static_cast<std::size_t>(function)];
}

}  // namespace

Hook::Hook(Function function, const void* caller) noexcept : function_(function) {
    find_library(caller);
    enter();
}

DEFT_NO_ARRAYS Hook::Hook(Function function, deft_nccl_comm_t comm, const void* caller) noexcept
    : function_(function), communicator_(Registry::process().find(comm)) {
    if (!communicator_) {
        find_library(caller);
        enter();
        claim(comm);
        return;
    }
    table_ = communicator_->table.load(std::memory_order_acquire);
    const NcclLibraries::Answer asked = NcclLibraries::process().for_caller(caller);
    const bool foreign =
        asked.certainty == NcclLibraries::Certainty::Bound && asked.table != table_;
    if (foreign) {  // the library that is called does not know the communicator
        table_ = asked.table;
        communicator_ = CommunicatorPin();
    }
    t_library = table_;
    enter();
    watched_ = watched_ && !foreign;
}

Hook::Hook(Function function, CommunicatorPin&& communicator, const NcclTable* table) noexcept
    : function_(function), table_(table), communicator_(std::move(communicator)), watched_(true) {
    ++t_depth;
}

// For a call without a communicator, or with one that is not known.
void Hook::find_library(const void* caller) noexcept {
    using Certainty = NcclLibraries::Certainty;
    const NcclLibraries::Answer asked = NcclLibraries::process().for_caller(caller);
    table_ = asked.table;
    if (asked.certainty == Certainty::Bound) {
        t_library = table_;
        return;
    }
    if (group::depth() > 0 && group::library() != nullptr) {
        table_ = group::library();
        return;
    }
    if (asked.certainty == Certainty::Likely && NcclLibraries::process().size() > 1) {
        undecided_ = true;
        table_ = t_library != nullptr ? t_library : table_;
    }
}

// A nonblocking child is known from the first call that the job makes on it.
void Hook::claim(deft_nccl_comm_t comm) noexcept {
    UnfinishedChildren& children = UnfinishedChildren::process();
    if (!watched_ || children.none()) {
        return;
    }
    communicator_ = children.claim(comm, undecided_ ? nullptr : table_);
    if (communicator_) {
        table_ = communicator_->table.load(std::memory_order_acquire);
        undecided_ = false;
        decide();
    }
}

DEFT_NO_ARRAYS void Hook::enter() noexcept {
    if (table_ != nullptr && group::waits() && !undecided_ && belongs_to_group(function_)) {
        group::begin(table_);
    }
    watched_ = t_depth++ == 0 && table_ != nullptr && shim_mode() != ShimMode::Off &&
               !ForkGuard::process().in_child();
}

Hook::~Hook() {
    --t_depth;
}

void Hook::decide() noexcept {
    if (table_ != nullptr && group::waits()) {
        group::begin(table_);
    }
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
