// SPDX-License-Identifier: Apache-2.0
// Hooks of the group calls. The depth is the calling thread's, as in NCCL.
#include "shim/hooks/collective.h"
#include "shim/hooks/communicator.h"
#include "shim/hooks/group.h"
#include "shim/hooks/held_call.h"
#include "shim/hooks/hook.h"

using deft::Function;
using deft::Hook;

namespace {

// Ends a level with one of NCCL's functions, which launches what the outermost one holds.
template <class End, class... Arguments>
int end_group(End end, Arguments... arguments) noexcept {
    // Before anything is launched: a switch named at one of its calls must not miss it.
    const int counted = deft::group::depth() == 1 ? deft::count_group() : DEFT_NCCL_SUCCESS;
    int result = end(arguments...);
    // NCCL leaves the level even when it reports an error, so the depth here must follow.
    if (deft::group::end()) {
        deft::observe_group_end(result);
        result = deft::group::settle(result);
        result = deft::held::make(result);
    }
    return counted != DEFT_NCCL_SUCCESS ? counted : result;
}

}  // namespace

DEFT_HOOK int ncclGroupStart() noexcept {
    const Hook hook(Function::GroupStart, DEFT_CALLER);
    if (hook.table() == nullptr || hook.table()->GroupStart == nullptr) {
        return hook.unavailable();
    }
    deft::communicator::counted(hook, Function::GroupStart);
    if (hook.undecided()) {
        deft::group::start(nullptr);
        return DEFT_NCCL_SUCCESS;
    }
    const int result = hook.table()->GroupStart();
    if (result == DEFT_NCCL_SUCCESS) {
        deft::group::start(hook.table());
    }
    return result;
}

DEFT_HOOK int ncclGroupEnd() noexcept {
    Hook hook(Function::GroupEnd, DEFT_CALLER);
    hook.decide();
    if (hook.table() == nullptr || hook.table()->GroupEnd == nullptr) {
        return hook.unavailable();
    }
    deft::communicator::counted(hook, Function::GroupEnd);
    return end_group(hook.table()->GroupEnd);
}

DEFT_HOOK int ncclGroupSimulateEnd(deft_nccl_sim_info_t* info) noexcept {
    Hook hook(Function::GroupSimulateEnd, DEFT_CALLER);
    hook.decide();
    if (hook.table() == nullptr || hook.table()->GroupSimulateEnd == nullptr) {
        return hook.unavailable();
    }
    deft::communicator::counted(hook, Function::GroupSimulateEnd);
    if (info == nullptr) {
        return end_group(hook.table()->GroupSimulateEnd, info);  // then NCCL simulates nothing
    }
    deft::held::forward();  // it is part of the estimate
    int result = hook.table()->GroupSimulateEnd(info);
    // It ends the group without launching anything: no collective has been called, on a rank that
    // may be the only one to ask. Communicators have been made.
    if (deft::group::end()) {
        deft::observe_group_end(DEFT_NCCL_INVALID_USAGE);
        result = deft::group::settle(result);
        result = deft::held::make(result);
    }
    return result;
}
