// SPDX-License-Identifier: Apache-2.0
// The decoders of what the ranks say to the leader and hear from it. What passes must survive being
// encoded and decoded again.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "shim/control/message.h"

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
    const std::vector<std::byte> again = encode(value);
    T back;
    require(decode(again, back));
    require(encode(back) == again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::span in(reinterpret_cast<const std::byte*>(data), size);
    round_trip<Proof>(in);
    round_trip<Order>(in);
    round_trip<Staged>(in);
    return 0;
}
