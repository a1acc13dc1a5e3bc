// SPDX-License-Identifier: Apache-2.0
// One intercepted call, as the hooks describe it to those who watch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deft/abi/nccl.h"

namespace deft {

// Every function of the forwarding table, in its order.
enum class Function : std::uint8_t {
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) name,
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
};

inline constexpr std::size_t kFunctions = 0
// NOLINTNEXTLINE(bugprone-macro-parentheses): a term of the sum
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) +1
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
    ;

// "ncclAllReduce".
constexpr const char* function_name(Function function) {
    constexpr const char* names[] = {
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) "nccl" #name,
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
    };
    return names[static_cast<std::size_t>(function)];
}

// A communication call. op is -1 where the function has none; root is the root or the peer, or -1.
struct Call {
    Function function = Function::AllReduce;
    std::size_t count = 0;
    int type = 0;
    int op = -1;
    int root = -1;
    const void* send = nullptr;
    const void* receive = nullptr;
    std::uint64_t mark = 0;  // what the companion says of the sum: SumMark; 0: nothing
};

// Bytes of one element of a ncclDataType_t; 0 for a type this release does not know.
constexpr std::size_t element_size(int type) {
    switch (type) {
        case DEFT_NCCL_INT8:
        case DEFT_NCCL_UINT8:
        case DEFT_NCCL_FLOAT8_E4M3:
        case DEFT_NCCL_FLOAT8_E5M2:
            return 1;
        case DEFT_NCCL_FLOAT16:
        case DEFT_NCCL_BFLOAT16:
            return 2;
        case DEFT_NCCL_INT32:
        case DEFT_NCCL_UINT32:
        case DEFT_NCCL_FLOAT32:
            return 4;
        case DEFT_NCCL_INT64:
        case DEFT_NCCL_UINT64:
        case DEFT_NCCL_FLOAT64:
            return 8;
        default:
            return 0;
    }
}

// By NCCL's rules: a reduce-scatter into its own shard, an all-gather from it. Below 0, as the rank
// is not known: the same pointer.
inline bool is_in_place(const Call& call, int rank) {
    const auto at = [&call, rank](const void* buffer) {
        return static_cast<const char*>(buffer) +
               static_cast<std::size_t>(rank) * call.count * element_size(call.type);
    };
    if (rank >= 0 && call.function == Function::ReduceScatter && call.send != nullptr) {
        return call.receive == at(call.send);
    }
    if (rank >= 0 && call.function == Function::AllGather && call.receive != nullptr) {
        return call.send == at(call.receive);
    }
    return call.send == call.receive;
}

}  // namespace deft
