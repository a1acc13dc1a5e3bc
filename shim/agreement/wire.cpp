// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/wire.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/hash.h"
#include "shim/agreement/council.h"
#include "shim/agreement/seal.h"

namespace deft::agreement::wire {
namespace {

constexpr std::uint32_t kTrailerMagic = 0x41464544;  // "DEFA"
constexpr std::uint16_t kFrameMagic = 0xDEFA;
constexpr unsigned kSecretBit = 0x80;
constexpr std::size_t kEndpointsAt = 24;
constexpr std::size_t kChecksumAt = 60;
constexpr std::size_t kDeftVersionBytes = 48;
constexpr std::size_t kHostBytes = 64;
constexpr std::size_t kHelloFixed = 16 + 12 + 16 + kDeftVersionBytes + kHostBytes;
constexpr std::size_t kLongestReason = 1024;
constexpr std::size_t kPrepareFixed = 3 * sizeof(std::uint64_t);
constexpr std::size_t kWordBytes = 2 * sizeof(std::uint64_t) + 1;

std::size_t endpoint_bytes(const Endpoint& endpoint) {
    return 3 + endpoint.address.size();
}

}  // namespace

bool equal(const Nonce& a, const Nonce& b) {
    unsigned difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference |= static_cast<unsigned>(a[i] ^ b[i]);
    }
    return difference == 0;
}

std::uint64_t process_of(const Nonce& nonce) {
    std::uint64_t half = 0;
    std::memcpy(&half, nonce.data(), sizeof(half));
    return half;
}

std::uint64_t council_of(const Nonce& nonce) {
    std::uint64_t half = 0;
    std::memcpy(&half, nonce.data() + sizeof(half), sizeof(half));
    return half;
}

void encode(const Trailer& trailer, std::span<std::byte, kTrailerBytes> out) {
    std::fill(out.begin(), out.end(), std::byte{0});
    std::size_t fits = 0;
    std::size_t bytes = kEndpointsAt;
    while (fits < trailer.count && bytes + endpoint_bytes(trailer.endpoints[fits]) <= kChecksumAt) {
        bytes += endpoint_bytes(trailer.endpoints[fits++]);
    }
    ByteWriter writer(out);
    writer.put(kTrailerMagic);
    writer.put(kVersion);
    writer.put(static_cast<std::uint8_t>(fits));
    writer.put(trailer.maker);
    writer.put_bytes(trailer.nonce.data(), trailer.nonce.size());
    for (std::size_t i = 0; i < fits; ++i) {
        const Endpoint& endpoint = trailer.endpoints[i];
        writer.put<std::uint8_t>(endpoint.address.family == AF_INET ? 4 : 6);
        writer.put(endpoint.port);
        writer.put_bytes(endpoint.address.bytes.data(), endpoint.address.size());
    }
    const std::uint32_t sum = fnv32(out.first(kChecksumAt));
    std::memcpy(out.data() + kChecksumAt, &sum, sizeof(sum));
}

Decoded decode(std::span<const std::byte, kTrailerBytes> in, Trailer& trailer) {
    ByteReader reader(in.first(kChecksumAt));
    if (reader.get<std::uint32_t>() != kTrailerMagic) {
        return Decoded::Absent;
    }
    if (reader.get<std::uint8_t>() != kVersion) {
        return Decoded::WrongVersion;
    }
    std::uint32_t sum = 0;
    std::memcpy(&sum, in.data() + kChecksumAt, sizeof(sum));
    const std::size_t count = reader.get<std::uint8_t>();
    trailer.maker = reader.get<std::uint16_t>();
    if (sum != fnv32(in.first(kChecksumAt)) || count == 0 || count > kMaxEndpoints) {
        return Decoded::Malformed;
    }
    reader.get_bytes(trailer.nonce.data(), trailer.nonce.size());
    trailer.count = 0;
    for (std::size_t i = 0; i < count; ++i) {
        Endpoint& endpoint = trailer.endpoints[i];
        const auto family = reader.get<std::uint8_t>();
        endpoint.port = reader.get<std::uint16_t>();
        if ((family != 4 && family != 6) || endpoint.port == 0) {
            return Decoded::Malformed;
        }
        endpoint.address = Address{};
        endpoint.address.family = family == 4 ? AF_INET : AF_INET6;
        endpoint.address.prefix = family == 4 ? 32 : 128;
        reader.get_bytes(endpoint.address.bytes.data(), endpoint.address.size());
        ++trailer.count;
    }
    return reader.ok() ? Decoded::Ok : Decoded::Malformed;
}

std::size_t longest(Type type) {
    switch (type) {
        case Type::Hello:
            return kHelloFixed + kMaxSettings;
        case Type::Verdict:
            return 1 + kLongestReason;
        case Type::Report:
            return kMaxBody;
        case Type::Prepare:
            return kPrepareFixed + kMaxBody;
        case Type::Answer:
        case Type::Decision:
            return kWordBytes;
        case Type::Post:
        case Type::Found:
            return 8 + kTrailerBytes;
        case Type::Ask:
        case Type::Resumed:
        case Type::Name:
            return 8;
        case Type::Offer:
        case Type::Move:
            return kTrailerBytes;
        case Type::Join:
            return sizeof(Nonce);
        case Type::Serve:
        case Type::AllHere:
        case Type::Ready:
        case Type::Ack:
        case Type::Leave:
        case Type::Closed:
        case Type::Gone:
            return 0;
    }
    return 0;
}

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out) {
    ByteWriter writer(out);
    writer.put(kFrameMagic);
    writer.put(kVersion);
    writer.put(static_cast<std::uint8_t>(static_cast<unsigned>(header.type) |
                                         (header.secret ? kSecretBit : 0U)));
    writer.put(header.length);
    writer.put(header.council);
    writer.put(header.rank);
}

Decoded decode(std::span<const std::byte, kHeaderBytes> in, Header& header) {
    ByteReader reader(in);
    if (reader.get<std::uint16_t>() != kFrameMagic) {
        return Decoded::Absent;
    }
    if (reader.get<std::uint8_t>() != kVersion) {
        return Decoded::WrongVersion;
    }
    const unsigned marked = reader.get<std::uint8_t>();
    header.secret = (marked & kSecretBit) != 0;
    const unsigned type = marked & ~kSecretBit;
    if (type == 0 || type >= kTypes) {
        return Decoded::Malformed;
    }
    header.type = static_cast<Type>(type);
    header.length = reader.get<std::uint32_t>();
    header.council = reader.get<std::uint64_t>();
    header.rank = reader.get<std::uint32_t>();
    return header.length <= longest(header.type) ? Decoded::Ok : Decoded::Malformed;
}

Frame make_frame(Type type, std::uint64_t council, std::uint32_t rank,
                 std::span<const std::byte> payload) {
    const Seal& seal = Seal::process();
    std::vector<std::byte> whole(kHeaderBytes + payload.size() + seal.bytes());
    const std::span<std::byte> all(whole);
    const auto header = all.first<kHeaderBytes>();
    encode(Header{type, static_cast<std::uint32_t>(payload.size()), council, rank, seal.secret()},
           header);
    if (!payload.empty()) {
        std::memcpy(whole.data() + kHeaderBytes, payload.data(), payload.size());
    }
    seal.make(header, payload, all.last(seal.bytes()));
    return std::make_shared<const std::vector<std::byte>>(std::move(whole));
}

std::uint64_t digest_of(std::uint64_t serial, std::uint64_t switch_call,
                        std::span<const std::byte> body) {
    const std::array<std::uint64_t, 2> numbers = {serial, switch_call};
    return fnv64(body, fnv64(std::as_bytes(std::span(numbers))));
}

std::vector<std::byte> encode(const Hello& hello) {
    const std::size_t settings = std::min(hello.settings.size(), kMaxSettings);
    std::vector<std::byte> out(kHelloFixed + settings);
    ByteWriter writer(out);
    writer.put_bytes(hello.nonce.data(), hello.nonce.size());
    writer.put(hello.nranks);
    writer.put(hello.rank);
    writer.put(hello.nccl_version);
    writer.put(hello.process);
    writer.put(hello.serial);
    writer.put_text(hello.deft_version, kDeftVersionBytes);
    writer.put_text(hello.host, kHostBytes);
    writer.put_bytes(hello.settings.data(), settings);
    return out;
}

bool decode(std::span<const std::byte> in, Hello& hello) {
    if (in.size() > longest(Type::Hello)) {
        return false;
    }
    ByteReader reader(in);
    reader.get_bytes(hello.nonce.data(), hello.nonce.size());
    hello.nranks = reader.get<std::uint32_t>();
    hello.rank = reader.get<std::uint32_t>();
    hello.nccl_version = reader.get<std::int32_t>();
    hello.process = reader.get<std::uint64_t>();
    hello.serial = reader.get<std::uint64_t>();
    hello.deft_version = reader.get_text(kDeftVersionBytes);
    hello.host = reader.get_text(kHostBytes);
    if (!reader.ok()) {
        return false;
    }
    hello.settings = reader.get_text(reader.left());
    return hello.rank < hello.nranks && hello.nranks <= 0x7fffffffu;
}

std::vector<std::byte> encode(const Verdict& verdict) {
    const std::size_t size = std::min(verdict.reason.size(), kLongestReason);
    std::vector<std::byte> out(1 + size);
    ByteWriter writer(out);
    writer.put<std::uint8_t>(verdict.on ? 1 : verdict.ended ? 2 : verdict.again ? 3 : 0);
    writer.put_bytes(verdict.reason.data(), size);
    return out;
}

bool decode(std::span<const std::byte> in, Verdict& verdict) {
    ByteReader reader(in);
    const auto on = reader.get<std::uint8_t>();
    verdict.on = on == 1;
    verdict.ended = on == 2;
    verdict.again = on == 3;
    verdict.reason = reader.get_text(reader.left());
    return reader.ok() && on <= 3 && in.size() <= longest(Type::Verdict);
}

std::vector<std::byte> encode(const Prepare& prepare) {
    std::vector<std::byte> out(kPrepareFixed + prepare.body.size());
    ByteWriter writer(out);
    writer.put(prepare.serial);
    writer.put(prepare.switch_call);
    writer.put(prepare.digest);
    writer.put_bytes(prepare.body.data(), prepare.body.size());
    return out;
}

bool decode(std::span<const std::byte> in, Prepare& prepare) {
    ByteReader reader(in);
    prepare.serial = reader.get<std::uint64_t>();
    prepare.switch_call = reader.get<std::uint64_t>();
    prepare.digest = reader.get<std::uint64_t>();
    prepare.body = reader.rest();
    return reader.ok() && in.size() <= longest(Type::Prepare);
}

std::vector<std::byte> encode(const Meeting& meeting) {
    std::vector<std::byte> out(8 + kTrailerBytes);
    ByteWriter writer(out);
    writer.put(meeting.child);
    writer.put_bytes(meeting.trailer.data(), meeting.trailer.size());
    return out;
}

std::vector<std::byte> encode_question(std::uint64_t child) {
    std::vector<std::byte> out(8);
    ByteWriter(out).put(child);
    return out;
}

bool decode(std::span<const std::byte> in, Meeting& meeting) {
    ByteReader reader(in);
    meeting.child = reader.get<std::uint64_t>();
    reader.get_bytes(meeting.trailer.data(), meeting.trailer.size());
    return reader.ok() && reader.left() == 0;
}

bool decode_question(std::span<const std::byte> in, std::uint64_t& child) {
    ByteReader reader(in);
    child = reader.get<std::uint64_t>();
    return reader.ok() && reader.left() == 0;
}

std::vector<std::byte> encode_name(std::uint64_t process) {
    return encode_question(process);
}

bool decode_name(std::span<const std::byte> in, std::uint64_t& process) {
    return decode_question(in, process) && process != 0;
}

std::vector<std::byte> encode_offer(const Trailer& trailer) {
    std::vector<std::byte> out(kTrailerBytes);
    encode(trailer, std::span(out).first<kTrailerBytes>());
    return out;
}

bool decode_offer(std::span<const std::byte> in, Trailer& trailer) {
    return in.size() == kTrailerBytes && decode(in.first<kTrailerBytes>(), trailer) == Decoded::Ok;
}

std::vector<std::byte> encode_join(const Nonce& nonce) {
    std::vector<std::byte> out(nonce.size());
    ByteWriter(out).put_bytes(nonce.data(), nonce.size());
    return out;
}

bool decode_join(std::span<const std::byte> in, Nonce& nonce) {
    ByteReader reader(in);
    reader.get_bytes(nonce.data(), nonce.size());
    return reader.ok() && reader.left() == 0;
}

std::vector<std::byte> encode_resumed(std::uint64_t heard) {
    return encode_question(heard);
}

bool decode_resumed(std::span<const std::byte> in, std::uint64_t& heard) {
    return decode_question(in, heard);
}

std::vector<std::byte> encode(const Word& word) {
    std::vector<std::byte> out(kWordBytes);
    ByteWriter writer(out);
    writer.put(word.serial);
    writer.put<std::uint8_t>(word.yes ? 1 : 0);
    writer.put(word.digest);
    return out;
}

bool decode(std::span<const std::byte> in, Word& word) {
    ByteReader reader(in);
    word.serial = reader.get<std::uint64_t>();
    const auto yes = reader.get<std::uint8_t>();
    word.yes = yes == 1;
    word.digest = reader.get<std::uint64_t>();
    return reader.ok() && reader.left() == 0 && yes <= 1;
}

}  // namespace deft::agreement::wire
