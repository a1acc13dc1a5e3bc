// SPDX-License-Identifier: Apache-2.0
// NCCL numbers its functions in the alphabetical order of collective, operation, type, algorithm
// and protocol, and leaves out those that another one stands for: sums of signed integers are those
// of unsigned ones. The enumerations are in alphabetical order for that reason.
#include "softdev/nccl_kernels/function.h"

#include <algorithm>
#include <array>

namespace softdev::nccl_kernels {
namespace {

constexpr std::array kOperations = {Operation::min_max, Operation::pre_mul_sum, Operation::product,
                                    Operation::sum, Operation::sum_post_div};
constexpr std::array kTypes = {Type::bf16,   Type::f16,    Type::f32, Type::f64,
                               Type::f8e4m3, Type::f8e5m2, Type::i32, Type::i64,
                               Type::i8,     Type::u32,    Type::u64, Type::u8};
constexpr std::array kProtocols = {Protocol::ll, Protocol::ll128, Protocol::simple};

std::vector<Algorithm> algorithms_of(Collective collective) {
    switch (collective) {
        case Collective::all_gather:
        case Collective::reduce_scatter:
            return {Algorithm::collnet_direct, Algorithm::nvls, Algorithm::pat, Algorithm::ring};
        case Collective::all_reduce:
            return {Algorithm::collnet_chain, Algorithm::collnet_direct, Algorithm::nvls,
                    Algorithm::nvls_tree,     Algorithm::ring,           Algorithm::tree};
        case Collective::all_gather_v:
        case Collective::broadcast:
        case Collective::reduce:
            return {Algorithm::ring};
        case Collective::messages:
            return {};
    }
    return {};
}

bool is_signed(Type type) {
    return type == Type::i8 || type == Type::i32 || type == Type::i64;
}

bool is_unsigned(Type type) {
    return type == Type::u8 || type == Type::u32 || type == Type::u64;
}

bool nvls_can(Operation operation, Type type) {
    const bool integers = type == Type::i32 || type == Type::i64 || type == Type::u32 ||
                          type == Type::u64 || type == Type::f16 || type == Type::bf16;
    const bool floats = type == Type::f32 || type == Type::f64;
    return (integers && (operation == Operation::sum || operation == Operation::min_max)) ||
           (floats && operation == Operation::sum);
}

bool is_nvls(Algorithm algorithm) {
    return algorithm == Algorithm::nvls || algorithm == Algorithm::nvls_tree;
}

// Whether NCCL has it under a number of its own.
bool exists(const Function& f) {
    const bool low_latency = f.protocol != Protocol::simple;
    if (low_latency && f.algorithm != Algorithm::ring && f.algorithm != Algorithm::tree) {
        return false;
    }
    if (f.operation == Operation::none) {
        return true;
    }
    if (is_nvls(f.algorithm) && !nvls_can(f.operation, f.type)) {
        return false;
    }
    // Only integers are divided afterwards; signed ones go by the unsigned ones' function, but for
    // the least and the greatest by NVLS, where the hardware compares.
    if (f.operation == Operation::sum_post_div && !is_unsigned(f.type)) {
        return false;
    }
    return !is_signed(f.type) || (f.operation == Operation::min_max && is_nvls(f.algorithm));
}

void add(std::vector<Function>& list, const Function& one) {
    for (const Algorithm algorithm : algorithms_of(one.collective)) {
        for (const Protocol protocol : kProtocols) {
            Function f = one;
            f.algorithm = algorithm;
            f.protocol = protocol;
            if (exists(f)) {
                list.push_back(f);
            }
        }
    }
}

void add_reductions(std::vector<Function>& list, Collective collective) {
    for (const Operation operation : kOperations) {
        for (const Type type : kTypes) {
            add(list, {collective, operation, type});
        }
    }
}

}  // namespace

std::vector<Function> list_functions(bool gathers_unequally) {
    std::vector<Function> list;
    add(list, {Collective::all_gather});
    if (gathers_unequally) {
        add(list, {Collective::all_gather_v});
    }
    add_reductions(list, Collective::all_reduce);
    add(list, {Collective::broadcast});
    add_reductions(list, Collective::reduce);
    add_reductions(list, Collective::reduce_scatter);
    list.push_back({Collective::messages});
    return list;
}

std::size_t bytes_of(Type type) {
    switch (type) {
        case Type::none:
        case Type::f8e4m3:
        case Type::f8e5m2:
        case Type::i8:
        case Type::u8:
            return 1;
        case Type::bf16:
        case Type::f16:
            return 2;
        case Type::f32:
        case Type::i32:
        case Type::u32:
            return 4;
        case Type::f64:
        case Type::i64:
        case Type::u64:
            return 8;
    }
    return 1;
}

std::string describe(const Function& f) {
    static const char* const kCollective[] = {
        "AllGather", "AllGatherV", "AllReduce", "Broadcast", "Reduce", "ReduceScatter", "SendRecv"};
    static const char* const kOperation[] = {"",      " MinMax", " PreMulSum",
                                             " Prod", " Sum",    " SumPostDiv"};
    static const char* const kType[] = {"",        " bf16",   " f16", " f32", " f64",
                                        " f8e4m3", " f8e5m2", " i8",  " i32", " i64",
                                        " u8",     " u32",    " u64"};
    static const char* const kAlgorithm[] = {
        "", " COLLNET_CHAIN", " COLLNET_DIRECT", " NVLS", " NVLS_TREE", " PAT", " RING", " TREE"};
    static const char* const kProtocol[] = {" LL", " LL128", " SIMPLE"};
    return std::string(kCollective[static_cast<int>(f.collective)]) +
           kOperation[static_cast<int>(f.operation)] + kType[static_cast<int>(f.type)] +
           kAlgorithm[static_cast<int>(f.algorithm)] + kProtocol[static_cast<int>(f.protocol)];
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names = {"Generic", "SendRecv", "AllGather_RING_LL",
                                      "AllGatherV_RING_LL", "Broadcast_RING_LL"};
    for (const char* collective : {"AllReduce", "Reduce", "ReduceScatter"}) {
        for (const char* type :
             {"bf16", "f16", "f32", "f64", "f8e4m3", "f8e5m2", "u8", "u32", "u64"}) {
            for (const char* algorithm : {"RING", "TREE"}) {
                names.push_back(std::string(collective) + "_Sum_" + type + "_" + algorithm + "_LL");
            }
        }
    }
    for (std::string& name : names) {
        name = "ncclDevKernel_" + name;
    }
    return names;
}

}  // namespace softdev::nccl_kernels
