// SPDX-License-Identifier: Apache-2.0
// The decoders of what the ranks say to the leader and hear from it. What passes must survive being
// encoded and decoded again.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "shim/control/message.h"
#include "shim/guard/guard.h"
#include "shim/guard/training_report.h"

using namespace deft::director;

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

template <class T>
void round_trip(std::span<const std::byte> in) {
    T value;
    if (!decode(in, value)) {
        return;
    }
    const auto again = encode(value);
    T back;
    require(decode(again, back));
    require(encode(back) == again);
}

void read_statistics(std::span<const std::byte> in) {
    deft::guard::Statistics statistics;
    if (deft::guard::decode(in, statistics)) {
        const auto again = deft::guard::encode(statistics);
        require(deft::guard::decode(again, statistics));
        require(deft::guard::encode(statistics) == again);
    }
}

// What companions tell of a training; the guard bears whatever that is.
void read_training(std::span<const std::byte> in) {
    std::vector<deft::guard::Training> told;
    if (!deft::guard::decode(in, told)) {
        return;
    }
    const auto again = deft::guard::encode(told);
    require(deft::guard::decode(again, told));
    require(deft::guard::encode(told) == again);
    deft::guard::TrainingWatch watch(1, 0);
    for (const deft::guard::Training& one : told) {
        watch.note(0, one);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::span in(reinterpret_cast<const std::byte*>(data), size);
    round_trip<Proof>(in);
    round_trip<Order>(in);
    round_trip<Staged>(in);
    round_trip<Pressed>(in);
    round_trip<Halted>(in);
    read_statistics(in);
    read_training(in);
    return 0;
}
