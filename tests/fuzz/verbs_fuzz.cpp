// SPDX-License-Identifier: Apache-2.0
// What the other end of an RDMA path says: its queue pair's address, and frames. What passes must
// be within its limits and survive being encoded and decoded again.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "plugin/core/chunk_rules.h"
#include "plugin/core/granted_frame.h"
#include "plugin/verbs/gid.h"
#include "plugin/verbs/queue_pair.h"

using namespace deft::net;

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

template <class T, std::size_t N, class Check>
void decode_as(std::span<const std::byte> in, Check&& check) {
    std::array<std::byte, N> bytes{};
    std::copy_n(in.begin(), std::min(in.size(), N), bytes.begin());
    T value;
    if (!decode(std::span<const std::byte, N>(bytes), value)) {
        return;
    }
    check(value);
    std::array<std::byte, N> again;
    encode(value, std::span<std::byte, N>(again));
    T back;
    require(decode(std::span<const std::byte, N>(again), back));
    std::array<std::byte, N> twice;
    encode(back, std::span<std::byte, N>(twice));
    require(again == twice);
}

}  // namespace

// The first byte chooses the decoder.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const auto in = std::as_bytes(std::span(data + 1, size - 1));
    switch (data[0] % 3) {
        case 0:
            decode_as<VerbsAddress, kVerbsAddressBytes>(
                in, [](const VerbsAddress& address) { require(address.qp < 1U << 24); });
            break;
        case 1:
            decode_as<GrantedFrame, kGrantedFrameBytes>(in, [](const GrantedFrame& frame) {
                require(frame.kind != GrantedFrameKind::Carried || sane_chunk(frame.chunk));
                require(frame.kind != GrantedFrameKind::Written || sane_run(frame.chunk));
                require(frame.kind != GrantedFrameKind::Control ||
                        frame.control.completed <= frame.control.posted);
            });
            break;
        case 2:
            (void)parse_gid(std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
            break;
    }
    return 0;
}
