// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/operation.h"

#include <sched.h>

#include <chrono>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {

using namespace std::chrono_literals;

void Operation::begin() {
    Communicator& comm = *communicator;
    for (Announcement& a : announcements) {
        if (a.peer < 0) {
            a.call.number = ++comm.collective_number;
        } else {
            const bool sending = a.call.function == static_cast<int32_t>(Function::kSend);
            a.call.number = ++comm.message_numbers[{a.peer, sending}];
        }
        if (!comm.limits.strict) {
            continue;
        }
        if (a.peer < 0) {
            comm.check().collective(a.call);
        } else if (a.call.function == static_cast<int32_t>(Function::kSend)) {
            comm.check().send(a.peer, a.call);
        } else {
            CallHeader as_send = a.call;  // compared with the sender's description
            as_send.function = static_cast<int32_t>(Function::kSend);
            comm.check().receive(a.peer, as_send);
        }
    }
    for (const Work& work : works) {
        for (const Program& program : work.programs) {
            for (Connection* connection : program.receive) {
                connection->open(program.shape, program.count_flag(Step::kReceive),
                                 program.most_bytes());
            }
            for (Connection* connection : program.send) {
                connection->open(program.shape, program.count_flag(Step::kSend),
                                 program.most_bytes());
            }
        }
    }
    if (comm.has_network()) {
        comm.resources().progress.work().ring();
    }
}

CUresult Operation::run(void* argument) {
    auto* self = static_cast<Operation*>(argument);
    self->ran = true;
    if (!self->captured) {
        return self->run_once(true);
    }
    Communicator& comm = *self->communicator;
    const CUresult result = self->run_once(comm.begin_replay());
    comm.end_replay();
    return result;
}

// `allowed`: the communicator's parts stay until this returns.
CUresult Operation::run_once(bool allowed) {
    Communicator& comm = *communicator;
    if (!allowed && comm.health() == Communicator::Health::kAborted && !comm.ended()) {
        return CUDA_SUCCESS;  // as a kernel that sees the abort flag
    }
    std::lock_guard one(comm.run_mutex);
    if (begins_late) {
        if (!allowed || comm.ended()) {
            softdevReportOn(comm.device,
                            "nccl: %s: a graph launches %s after the communicator's end",
                            comm.name().c_str(), label.c_str());
            return CUDA_ERROR_LAUNCH_FAILED;
        }
        std::lock_guard lock(comm.launch_mutex);
        begin();
    }
    return run_works();
}

void Operation::done(void* argument) {
    std::unique_ptr<Operation> self(static_cast<Operation*>(argument));
    const auto communicator = self->communicator;
    if (!self->ran && !self->captured && communicator->health() == Communicator::Health::kGood) {
        communicator->fail(ncclUnhandledCudaError, self->label + " was dropped by its stream",
                           false);
    }
    const bool captured = self->captured;
    self.reset();
    communicator->landed(captured);
}

CUresult Operation::run_works() {
    for (const Work& work : works) {
        // As a kernel that sees the abort flag. What lies in the connections is of the operation
        // before it, which ended half-way.
        if (communicator->health() == Communicator::Health::kAborted) {
            return CUDA_SUCCESS;
        }
        const CUresult result = run_work(work);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

CUresult Operation::run_work(const Work& work) {
    Communicator& comm = *communicator;
    Kernel kernel(work);
    auto stuck_since = Clock::now();
    unsigned quiet = 0;
    for (;;) {
        const uint64_t seen = comm.has_network() ? comm.resources().progress.moved().seen() : 0;
        switch (kernel.advance()) {
            case Kernel::State::kDone:
                if (comm.has_network()) {
                    comm.resources().progress.work().ring();
                }
                return CUDA_SUCCESS;
            case Kernel::State::kMoved:
                comm.resources().progress.work().ring();
                stuck_since = Clock::now();
                quiet = 0;
                continue;
            case Kernel::State::kBroken:
                comm.fail(ncclInternalError, label + ": " + kernel.error(), true);
                break;
            case Kernel::State::kStuck:
                break;
        }
        CUresult result = CUDA_SUCCESS;
        if (++quiet % 64 == 0 || comm.health() != Communicator::Health::kGood) {
            if (give_up(kernel, stuck_since, &result)) {
                return result;
            }
        }
        if (quiet < 32) {
            sched_yield();
        } else {
            comm.resources().progress.moved().sleep(seen, kernel.polling() ? 50us : 2ms);
        }
    }
}

bool Operation::give_up(const Kernel& kernel, Clock::time_point stuck_since, CUresult* result) {
    Communicator& comm = *communicator;
    const auto stuck = Clock::now() - stuck_since;
    if (comm.health() == Communicator::Health::kGood && stuck >= comm.limits.stall) {
        comm.fail(ncclRemoteError,
                  format("%s has not moved for %.0f s, waiting for %s; %s", label.c_str(),
                         std::chrono::duration<double>(comm.limits.stall).count(),
                         kernel.waiting_for().c_str(), comm.describe_stall().c_str()),
                  true);
    } else if (comm.health() == Communicator::Health::kGood && stuck >= 2s) {
        for (int peer = 0; peer < comm.nranks; ++peer) {
            if (peer != comm.rank && comm.control().lost(peer)) {
                comm.fail(ncclRemoteError,
                          format("%s waits for %s, and rank %d has left the communicator",
                                 label.c_str(), kernel.waiting_for().c_str(), peer),
                          true);
                break;
            }
        }
    }
    switch (comm.health()) {
        case Communicator::Health::kGood:
            return false;
        case Communicator::Health::kAborted:
            // As a kernel that sees the abort flag: it ends and the stream goes on.
            *result = CUDA_SUCCESS;
            return true;
        case Communicator::Health::kFailed:
            break;
    }
    // The application may find the error with ncclCommGetAsyncError and abort; a stream that nobody
    // aborts must not hang, so after a while the operation fails.
    const auto until = Clock::now() + comm.limits.grace;
    while (Clock::now() < until) {
        const uint64_t seen = comm.resources().progress.moved().seen();
        if (comm.health() == Communicator::Health::kAborted) {
            *result = CUDA_SUCCESS;
            return true;
        }
        comm.resources().progress.moved().sleep(seen, 20ms);
    }
    *result = CUDA_ERROR_LAUNCH_FAILED;
    return true;
}

}  // namespace softdev::nccl
