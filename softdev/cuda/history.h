// SPDX-License-Identifier: Apache-2.0
// Who touched which bytes last, to find accesses that no stream order, event or synchronisation
// puts in order.
//
// For each run of bytes: the last write, and the reads since that are not ordered before each
// other. An operation may follow them when its stream's clock has reached their counts (vector
// clocks: what really ran first does not matter). What a host thread has seen finished is ordered
// before everything that comes and is dropped, so the table stays small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "softdev/cuda/engine.h"

namespace softdev {

struct Accesses {
    const softdev_access_t* list = nullptr;
    std::size_t count = 0;
};

/// Reports the first of the accesses that is not ordered after an earlier conflicting one; the
/// stream's clock must be up to date (order_stream). CUDA_ERROR_ILLEGAL_STATE then, and nothing is
/// noted.
CUresult check_history(const Stream& stream, const std::string& label, Accesses accesses);
/// Notes the accesses of the operation that was put on the stream last.
void note_history(const Stream& stream, const std::string& label, Accesses accesses);

/// The bytes begin a new life: what was done to them before is over.
void forget_history(std::uintptr_t base, std::size_t bytes);

/// Runs of bytes that are remembered, for tests.
std::size_t history_size();

}  // namespace softdev
