// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <exception>

#include "softdev/nccl/error.h"
#include "softdev/nccl/group.h"
#include "softdev/nccl/log.h"

// The public name is a weak alias of the profiling name, as in NCCL: SOFTNCCL_ALIAS follows each
// definition of a p-function, with its result and parameter list.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmissing-attributes"  // gcc infers nothrow for the target only
#endif
#define SOFTNCCL_ALIAS(result, name, parameters)                              \
    extern "C" __attribute__((weak, alias("p" #name), visibility("default"))) \
    result name parameters;
#define SOFTNCCL_API extern "C" __attribute__((visibility("default")))

namespace softdev::nccl {

// Types that nccl.h has from 2.29 and 2.29.7 on.
#if NCCL_VERSION_CODE >= 22900
using WaitSignal = ncclWaitSignalDesc_t;
#else
using WaitSignal = void;
#endif
#if NCCL_VERSION_CODE >= 22907
using MemoryStatistic = ncclCommMemStat_t;
#else
using MemoryStatistic = int;
#endif

// Runs one API call: exceptions become a code and the last error.
template <class Call>
ncclResult_t api(const char* name, Call&& call) noexcept {
    ncclResult_t result = ncclInternalError;
    try {
        return call();
    } catch (const Error& error) {
        log_warn("%s", error.what());
        result = error.code();
    } catch (const std::bad_alloc&) {
        log_warn("%s : out of memory", name);
        result = ncclSystemError;
    } catch (const std::exception& error) {
        log_warn("%s : %s", name, error.what());
    }
    return result;
}

// Queues one task or job in an implicit group; an error is also the error of the group around it.
template <class Queue>
ncclResult_t implicit_group(Queue&& queue) {
    group_start();
    try {
        queue();
    } catch (const Error& error) {
        group_note_error(error.code());
        group_end();
        throw;
    }
    return group_end();
}

// Throws Error as NCCL refuses calls on a communicator that is not ready: a nonblocking call still
// runs, an asynchronous error, finalized, revoked.
void require_ready(const Communicator& communicator, const char* call);

template <class T>
void require_pointer(const T* pointer, const char* call, const char* name) {
    if (pointer == nullptr) {
        throw Error(ncclInvalidArgument, format("%s : %s argument is NULL", call, name));
    }
}

}  // namespace softdev::nccl
