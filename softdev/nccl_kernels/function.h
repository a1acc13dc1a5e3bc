// SPDX-License-Identifier: Apache-2.0
// What a function number of NCCL's stands for.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace softdev::nccl_kernels {

enum class Collective {
    all_gather,
    all_gather_v,
    all_reduce,
    broadcast,
    reduce,
    reduce_scatter,
    messages,
};
enum class Operation { none, min_max, pre_mul_sum, product, sum, sum_post_div };
enum class Type { none, bf16, f16, f32, f64, f8e4m3, f8e5m2, i8, i32, i64, u8, u32, u64 };
enum class Algorithm { none, collnet_chain, collnet_direct, nvls, nvls_tree, pat, ring, tree };
/// The numbers are those of NCCL's buffers.
enum class Protocol { ll = 0, ll128 = 1, simple = 2 };

struct Function {
    Collective collective = Collective::messages;
    Operation operation = Operation::none;
    Type type = Type::none;  ///< bytes where none
    Algorithm algorithm = Algorithm::none;
    Protocol protocol = Protocol::simple;
};

/// All functions of a library that was built with none left out, by number.
std::vector<Function> list_functions(bool gathers_unequally);

std::size_t bytes_of(Type type);
std::string describe(const Function& function);

/// Names of the kernels (ncclDevKernel_*) that a library may have, without the mangling.
std::vector<std::string> kernel_names();

}  // namespace softdev::nccl_kernels
