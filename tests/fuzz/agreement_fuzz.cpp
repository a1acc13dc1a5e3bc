// SPDX-License-Identifier: Apache-2.0
// The decoders of what the ranks say to each other while they agree. What passes must be within its
// limits and survive being encoded and decoded again.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "shim/agreement/wire.h"

using namespace deft::agreement;

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

// Of a decoder that takes any length.
template <class T>
void round_trip(std::span<const std::byte> in) {
    T value;
    if (!wire::decode(in, value)) {
        return;
    }
    const std::vector<std::byte> again = wire::encode(value);
    T back;
    require(wire::decode(again, back));
    require(wire::encode(back) == again);
}

void read_trailer(std::span<const std::byte> in) {
    std::array<std::byte, wire::kTrailerBytes> bytes{};
    std::copy_n(in.begin(), std::min(in.size(), bytes.size()), bytes.begin());
    wire::Trailer trailer;
    if (wire::decode(bytes, trailer) != wire::Decoded::Ok) {
        return;
    }
    require(trailer.count >= 1 && trailer.count <= wire::kMaxEndpoints);
    wire::encode(trailer, bytes);
    require(wire::decode(bytes, trailer) == wire::Decoded::Ok);
}

void read_header(std::span<const std::byte> in) {
    std::array<std::byte, wire::kHeaderBytes> bytes{};
    std::copy_n(in.begin(), std::min(in.size(), bytes.size()), bytes.begin());
    wire::Header header;
    if (wire::decode(bytes, header) == wire::Decoded::Ok) {
        require(header.length <= wire::longest(header.type));
    }
}

}  // namespace

// The first byte chooses the decoder.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const auto in = std::as_bytes(std::span(data + 1, size - 1));
    std::uint64_t child = 0;
    std::uint64_t heard = 0;
    std::uint64_t process = 0;
    wire::Trailer offer;
    wire::Nonce secret{};
    switch (data[0] % 12) {
        case 0:
            round_trip<wire::Hello>(in);
            break;
        case 1:
            round_trip<wire::Verdict>(in);
            break;
        case 2:
            round_trip<wire::Prepare>(in);
            break;
        case 3:
            round_trip<wire::Meeting>(in);
            break;
        case 4:
            round_trip<wire::Word>(in);
            break;
        case 5:
            (void)wire::decode_question(in, child);
            break;
        case 6:
            read_trailer(in);
            break;
        case 7:
            read_header(in);
            break;
        case 8:
            require(!wire::decode_name(in, process) || in.size() == sizeof(process));
            break;
        case 9:
            (void)wire::decode_resumed(in, heard);
            break;
        case 10:
            require(!wire::decode_offer(in, offer) || offer.count >= 1);
            break;
        case 11:
            require(!wire::decode_join(in, secret) || in.size() == secret.size());
            break;
    }
    return 0;
}
