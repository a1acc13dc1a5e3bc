// SPDX-License-Identifier: Apache-2.0
// Where the hooks meet the agreement: which unique ids carry a trailer, which communicators get a
// council. Nothing of it happens in the modes off and observe.
#pragma once

#include "shim/agreement/council.h"
#include "shim/hooks/hook.h"

namespace deft::rendezvous {

// True if this process's mode diverts calls, for which all ranks have to agree.
bool agreement_wanted() noexcept;

// After the library has made a unique id for the job.
void issued(const Hook& hook, deft_nccl_unique_id_t* id, int result) noexcept;

// Before the library is asked for a communicator from this id: begins the agreement, which goes on
// while NCCL waits for the other ranks. None if there is nothing to agree on; why is said once.
// `network`: the name that its network is chosen by, or null.
agreement::CouncilRef join(const Hook& hook, const deft_nccl_unique_id_t& id, int nranks, int rank,
                           const char* network) noexcept;

// Under DEFT_REQUIRE=1, before one process makes all `nranks` ranks of a communicator at once
// (ncclCommInitAll): true, and the reason in the log, if that has to fail.
bool refuses_lone_process(const Hook& hook, int nranks) noexcept;

// When a child of a communicator is ready, which has no id: its ranks find each other through their
// parent's agreement. `name` is equal on all its ranks and on no other child. None as from join().
agreement::CouncilRef inherit(agreement::Council& parent, std::uint64_t name, int nccl_version,
                              int nranks, int rank, const char* network) noexcept;

// Under DEFT_REQUIRE=1, when a communicator has been made: waits, with a deadline, for what its
// ranks agree on. False, and the reason in the log, if it has to fail: they do not agree, or NCCL
// tried deft's plugin in this process and it could not start. A plugin that NCCL was never told of
// is no reason.
bool acceptable(agreement::Council* council, int nranks) noexcept;

}  // namespace deft::rendezvous
