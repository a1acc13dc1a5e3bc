// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/script.h"

#include <algorithm>

#include "shim/nccl/call.h"

namespace deft::executor {

std::uint64_t Shape::bytes() const {
    return count * element_size(type);
}

std::vector<Shape> with_halves(std::vector<Shape> shapes, std::uint32_t ranks) {
    const std::size_t sums = shapes.size();
    for (std::size_t i = 0; i < sums; ++i) {
        Shape half = shapes[i];
        half.count = std::max<std::uint64_t>(half.count / ranks, 1);
        for (const Function function : {Function::ReduceScatter, Function::AllGather}) {
            half.function = function;
            shapes.push_back(half);
        }
    }
    return shapes;
}

bool Script::forwards_all() const {
    return std::all_of(actions.begin(), actions.end(),
                       [](const Action& a) { return a.forward && a.nothing(); });
}

bool Script::halves() const {
    return std::any_of(launches.begin(), launches.end(),
                       [](const Launch& launch) { return launch.halves(); });
}

}  // namespace deft::executor
