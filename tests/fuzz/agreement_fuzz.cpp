// SPDX-License-Identifier: Apache-2.0
// The decoders of what the ranks say to each other while they agree, on meeting and on how NCCL is
// to carry out calls. What passes must be within its
// limits and survive being encoded and decoded again.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "shim/agreement/wire.h"
#include "shim/tuning/judgement.h"
#include "shim/tuning/table.h"

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

// Whatever passes can be asked for any call.
void read_order(std::span<const std::byte> in) {
    namespace tuning = deft::tuning;
    tuning::Order order;
    if (!tuning::decode(in, order)) {
        return;
    }
    tuning::Order back;
    require(tuning::decode(tuning::encode(order), back));
    require(tuning::encode(back) == tuning::encode(order));
    tuning::Table table(order);
    for (const tuning::Entry& entry : order.entries) {
        for (std::uint64_t call = 0; call < 300; ++call) {
            (void)table.pick(entry.key, order.start + call);
        }
        (void)tuning::to_text(entry.key);
        (void)tuning::to_text(entry.candidates.front());
    }
}

void read_times(std::span<const std::byte> in) {
    namespace tuning = deft::tuning;
    std::uint64_t serial = 0;
    tuning::Times times;
    if (tuning::decode(in, serial, times)) {
        const std::vector<std::byte> bytes = tuning::encode(serial, times);
        require(std::equal(bytes.begin(), bytes.end(), in.begin(), in.end()));
        (void)tuning::least({times, times});
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
    switch (data[0] % 14) {
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
        case 12:
            read_order(in);
            break;
        case 13:
            read_times(in);
            break;
    }
    return 0;
}
