// SPDX-License-Identifier: Apache-2.0
// The life of a communicator as the hooks see it: refused, made, ending.
#pragma once

#include <cstdint>

#include "shim/agreement/council.h"
#include "shim/hooks/hook.h"
#include "shim/hooks/job_network.h"

namespace deft::communicator {

// A name for a communicator that is equal on all its ranks: a hash of the unique id.
std::uint64_t hash_of(const deft_nccl_unique_id_t& id) noexcept;
// For communicators made without an id, in one process (ncclCommInitAll).
std::uint64_t local_hash() noexcept;
// For a child split off: from the parent's, how often it was split, and the colour. Advances the
// count, which is equal on all ranks because all of them take part in a split.
std::uint64_t split_hash(Hook& hook, std::uint64_t color) noexcept;
// For a shrunk one: from the parent's, the ranks that are left out, and how often it was shrunk to
// those that remain. Splits do not count: those that are left out take part in them.
std::uint64_t shrunk_hash(Hook& hook, const int* excluded, int count) noexcept;

// Before the library is asked for a communicator. Returns the error it must fail with because the
// shim cannot act and DEFT_REQUIRE=1, else 0.
int starting(const Hook& hook, Function function) noexcept;

// After the library's answer: registers *comm, at once or when the group ends. Returns the result
// for the job: `result`, unless DEFT_REQUIRE=1 turns it into an error (then *comm is aborted).
// `council`: what rendezvous::join() began for it; left if there is no communicator.
int made(const Hook& hook, deft_nccl_comm_t* comm, std::uint64_t hash, int rank, int nranks,
         const job_network::Config& config, int result,
         agreement::CouncilRef council = {}) noexcept;
// The same for a child of the hook's communicator: split off or shrunk, without an id of its own.
int made_from(Hook& hook, agreement::CouncilRef parent, deft_nccl_comm_t* child, std::uint64_t hash,
              const job_network::Config& config, int result) noexcept;
// The same for one that ncclCommGrow makes. It has no agreement, and DEFT_REQUIRE=1 does not ask
// for one: its id is NCCL's own, and the ranks that join know nothing of the others' plans. Says so
// where calls of the communicator it was made from were planned.
int grown(Hook& hook, deft_nccl_comm_t* comm, int rank, int nranks,
          const job_network::Config& config, int result) noexcept;
// What the hook's communicator agrees by; none: nothing, or it is not known.
agreement::CouncilRef council_of(Hook& hook) noexcept;

// The entry of the communicator a watched call is made on, with its rank, size and device once the
// library tells them. One that no hook saw made (an entry point newer than this list) is added.
// Null if there is no room for it.
const Communicator* known(Hook& hook, deft_nccl_comm_t comm) noexcept;

// Asks the library for rank, size and device. Returns whether they are known now.
bool ask_details(Communicator& communicator) noexcept;

// Before a communicator is destroyed or aborted: its entry goes first, because another thread may
// be given the same address the moment the library has freed it. False: another thread ends it (an
// abort releases a destroy that waits for a lane, and goes to the library itself, where the job's
// own transfers may stand still too), so the library must not hear of it from this one. One that no
// entry is known of is the library's to judge.
[[nodiscard]] bool ending(Hook& hook, deft_nccl_comm_t comm, Function function) noexcept;

// Before a communicator is destroyed or aborted: ends what a plan has made for it. Waits for what
// is in flight; with `abort` it only begins the aborts, and waits for nothing.
void stop_planning(Hook& hook, bool abort) noexcept;
// After the library has aborted, revoked or shrunk it: what a plan has made for it is being aborted
// beside that, and is waited for, a moment at most.
void lanes_aborted(Hook& hook) noexcept;
// Before one is finalized: no plan any more. Does not wait.
void finalizing(Hook& hook) noexcept;
// After the library's answer, which is the job's too.
int finalized(Hook& hook, int result) noexcept;

// Before one is suspended: the plan in force ends as by deft_flush(), the lanes go, and with both
// what they hold of the device's memory. Waits as the end of one does.
void suspending(Hook& hook) noexcept;
// After the library's answer, which is the job's too. Where it has refused, as on every rank alike,
// planning begins anew.
int suspended(Hook& hook, int result) noexcept;
// After it has been resumed: planning begins anew, by an agreement of its own.
int resumed(Hook& hook, int result) noexcept;

// Before one is revoked, or shrunk with NCCL_SHRINK_ABORT: ends the plan, begins to abort what is
// in flight.
// The rank stays in the council, through which the ranks of a child find each other.
void cutting(Hook& hook) noexcept;

// Before the library is asked for communicators whose handles it stores there.
void storing(const Hook& hook, deft_nccl_comm_t* where, int count) noexcept;

// What the job is told of asynchronous errors: the library's answer and those of deft's lanes. That
// nothing is in progress any more is also when nonblocking children have got their handles: those
// that had been begun (UnfinishedChildren::begun) when the library was asked.
int merge_async_error(Hook& hook, int result, std::uint64_t begun, int* error) noexcept;

// Says once, at level INFO, if NCCL has made a communicator without deft as its network plugin.
void tell_about_plugin() noexcept;

// Before a call that changes nothing here, but must not overtake one that the shim holds.
void passing(const Hook& hook, Function function) noexcept;

// Counts a call that changes nothing here.
void counted(const Hook& hook, Function function) noexcept;

}  // namespace deft::communicator
