// SPDX-License-Identifier: Apache-2.0
#include "shim/nccl/gradient_call.h"

#include <algorithm>

#include "shim/nccl/series.h"

namespace deft {
namespace {

bool is_floating(const CallRecord& record) {
    return record.type >= DEFT_NCCL_FLOAT16 && record.type < DEFT_NCCL_NUM_TYPES;
}

bool is_sum(const CallRecord& record) {
    return record.op == DEFT_NCCL_SUM || record.op >= DEFT_NCCL_AVG;
}

}  // namespace

std::uint64_t payload_bytes(const CallRecord& record) {
    const std::uint64_t bytes = record.count * element_size(record.type);
    switch (record.function) {
        case Function::ReduceScatter:
        case Function::AllGather:
        case Function::AlltoAll:
        case Function::Gather:
        case Function::Scatter:
            return bytes * static_cast<std::uint64_t>(std::max(record.nranks, 1));
        default:
            return bytes;
    }
}

bool is_small(const CallRecord& record) {
    return !is_floating(record) || payload_bytes(record) < kSmallestGradient;
}

bool carries_gradient(const CallRecord& record) {
    const bool reduces =
        record.function == Function::AllReduce || record.function == Function::ReduceScatter;
    return reduces && is_sum(record) && !is_small(record);
}

bool may_be_small_gradient(const CallRecord& record) {
    return record.function == Function::AllReduce && is_sum(record) && is_floating(record) &&
           record.in_place && record.count > 1 && payload_bytes(record) < kSmallestGradient;
}

bool is_numbered(const CallRecord& record) {
    if (!moves_shards(record.function)) {
        return record.function == Function::AllReduce && carries_gradient(record);
    }
    const bool sums = record.function == Function::ReduceScatter;
    return record.count * element_size(record.type) >= kSmallestGradient &&
           (!sums || (is_sum(record) && is_floating(record)));
}

}  // namespace deft
