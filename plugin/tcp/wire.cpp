// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "plugin/core/chunk_rules.h"
#include "plugin/core/crc32c.h"

namespace deft::net::wire {
namespace {

constexpr std::uint32_t kHandleMagic = 0x54464544;   // "DEFT"
constexpr std::uint32_t kHelloMagic = 0x4c454844;    // "DHEL"
constexpr std::uint32_t kWelcomeMagic = 0x4c455744;  // "DWEL"
constexpr std::uint16_t kChunkMagic = 0xDEF7;
constexpr std::uint16_t kControlMagic = 0xDEFC;
constexpr std::size_t kAttemptAt = 32;
constexpr std::size_t kKindAt = 112;    // of a hello, behind the largest endpoint
constexpr std::int32_t kReserved = -1;  // of a hello; in a handle of the first releases too
constexpr std::size_t kSealBytes = 4;
constexpr std::uint8_t kMapped = 0x80;  // of a port: an IPv4 address stands for its GID
constexpr std::array<std::uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// family (4 or 6), link, port, address: 8 or 20 bytes.
void put_endpoint(ByteWriter& out, const Endpoint& endpoint) {
    out.put<std::uint8_t>(endpoint.address.family == AF_INET ? 4 : 6);
    out.put(endpoint.link);
    out.put(endpoint.port);
    out.put_bytes(endpoint.address.bytes.data(), endpoint.address.size());
}

bool get_endpoint(ByteReader& in, Endpoint& endpoint) {
    const auto family = in.get<std::uint8_t>();
    endpoint.link = in.get<std::uint8_t>();
    endpoint.port = in.get<std::uint16_t>();
    if ((family != 4 && family != 6) || endpoint.link >= kMaxLinks) {
        return false;
    }
    endpoint.address.family = family == 4 ? AF_INET : AF_INET6;
    endpoint.address.prefix = family == 4 ? 32 : 128;
    in.get_bytes(endpoint.address.bytes.data(), endpoint.address.size());
    return in.ok();
}

std::size_t endpoint_bytes(const Endpoint& endpoint) {
    return 4 + endpoint.address.size();
}

bool get_endpoints(ByteReader& in, std::size_t count, EndpointList& list) {
    if (count > kMaxEndpoints) {
        return false;
    }
    for (list.count = 0; list.count < count; ++list.count) {
        if (!get_endpoint(in, list.entries[list.count])) {
            return false;
        }
    }
    return true;
}

bool mapped(const Port& port) {
    return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), port.gid.begin());
}

std::size_t port_bytes(const Port& port) {
    return 1 + (mapped(port) ? 4 : port.gid.size());
}

// How many of them there is room for.
std::size_t ports_in(const PortList& ports, std::size_t room) {
    std::size_t fits = 0;
    while (fits < ports.count && port_bytes(ports.entries[fits]) <= room) {
        room -= port_bytes(ports.entries[fits++]);
    }
    return fits;
}

// Layer, GID: 5 or 17 bytes.
void put_ports(ByteWriter& out, const PortList& ports, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        const Port& port = ports.entries[i];
        const std::size_t skipped = mapped(port) ? kMappedPrefix.size() : 0;
        out.put(static_cast<std::uint8_t>(static_cast<std::uint8_t>(port.layer) |
                                          (skipped != 0 ? kMapped : 0)));
        out.put_bytes(port.gid.data() + skipped, port.gid.size() - skipped);
    }
}

bool get_ports(ByteReader& in, std::size_t count, PortList& ports) {
    if (count > kMaxPorts) {
        return false;
    }
    for (ports.count = 0; ports.count < count; ++ports.count) {
        Port& port = ports.entries[ports.count];
        const auto layer = in.get<std::uint8_t>();
        const std::size_t skipped = (layer & kMapped) != 0 ? kMappedPrefix.size() : 0;
        port.gid = {};
        if (skipped != 0) {
            std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), port.gid.begin());
        }
        in.get_bytes(port.gid.data() + skipped, port.gid.size() - skipped);
        port.layer = static_cast<Port::Layer>(layer & ~kMapped);
        if (!in.ok() || (port.layer != Port::Layer::InfiniBand &&
                         port.layer != Port::Layer::Ethernet && port.layer != Port::Layer::Ucx)) {
            return false;
        }
    }
    return true;
}

std::uint32_t seal_of(std::span<const std::byte> frame) {
    return crc32c(0, frame.data(), frame.size() - sizeof(std::uint32_t));
}

bool sealed(std::span<const std::byte> frame) {
    std::uint32_t sum = 0;
    std::memcpy(&sum, frame.data() + frame.size() - sizeof(sum), sizeof(sum));
    return sum == seal_of(frame);
}

}  // namespace

void seal(std::span<std::byte> frame) {
    const std::uint32_t sum = seal_of(frame);
    std::memcpy(frame.data() + frame.size() - sizeof(sum), &sum, sizeof(sum));
}

bool equal_secrets(const Secret& a, const Secret& b) {
    unsigned difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference |= static_cast<unsigned>(a[i] ^ b[i]);
    }
    return difference == 0;
}

void encode(const Handle& handle, std::span<std::byte, kHandleBytes> out) {
    std::size_t fits = 0;
    std::size_t bytes = 48;
    while (fits < handle.endpoints.count &&
           bytes + endpoint_bytes(handle.endpoints.entries[fits]) <= kHandleBytes) {
        bytes += endpoint_bytes(handle.endpoints.entries[fits++]);
    }
    ByteWriter writer(out);
    writer.put(kHandleMagic);
    writer.put(handle.version);
    writer.put(static_cast<std::uint8_t>(fits));
    writer.put(handle.total);
    writer.put(handle.listener);
    writer.put_bytes(handle.secret.data(), handle.secret.size());
    writer.put(handle.attempt);
    writer.put(static_cast<std::int32_t>(handle.newest));
    const std::size_t ports = ports_in(handle.ports, kHandleBytes - bytes);
    writer.put(handle.features);
    writer.put(static_cast<std::uint8_t>(ports));
    writer.put(handle.total_ports);
    writer.put(handle.first_reserve);
    for (std::size_t i = 0; i < fits; ++i) {
        put_endpoint(writer, handle.endpoints.entries[i]);
    }
    put_ports(writer, handle.ports, ports);
    writer.zeros();
}

Decoded decode(std::span<const std::byte, kHandleBytes> in, Handle& handle) {
    ByteReader reader(in);
    if (reader.get<std::uint32_t>() != kHandleMagic) {
        return Decoded::NotDeft;
    }
    handle.version = reader.get<std::uint16_t>();
    const auto count = reader.get<std::uint8_t>();
    handle.total = reader.get<std::uint8_t>();
    handle.listener = reader.get<std::uint64_t>();
    reader.get_bytes(handle.secret.data(), handle.secret.size());
    handle.attempt = reader.get<std::uint64_t>();
    const auto newest = reader.get<std::int32_t>();
    handle.newest = newest > handle.version && newest <= std::numeric_limits<std::uint16_t>::max()
                        ? static_cast<std::uint16_t>(newest)
                        : handle.version;
    if (common_version(handle) == 0) {
        return Decoded::WrongVersion;
    }
    handle.features = reader.get<std::uint8_t>();
    const auto ports = reader.get<std::uint8_t>();
    handle.total_ports = reader.get<std::uint8_t>();
    handle.first_reserve = reader.get<std::uint8_t>();
    if (count == 0 || handle.first_reserve >= kMaxLinks || handle.total < count ||
        handle.total > kMaxEndpoints || handle.total_ports < ports ||
        handle.total_ports > kMaxPorts || !get_endpoints(reader, count, handle.endpoints) ||
        !get_ports(reader, ports, handle.ports)) {
        return Decoded::Malformed;
    }
    return Decoded::Ok;
}

void set_attempt(std::span<std::byte, kHandleBytes> encoded, std::uint64_t attempt) {
    ByteWriter(encoded.subspan(kAttemptAt, 8)).put(attempt);
}

void encode(const Hello& hello, std::span<std::byte, kHelloBytes> out) {
    ByteWriter writer(out);
    writer.put(kHelloMagic);
    writer.put(hello.version);
    writer.put(static_cast<std::uint16_t>(kHelloBytes));
    writer.put(hello.listener);
    writer.put_bytes(hello.secret.data(), hello.secret.size());
    writer.put(hello.connection);
    writer.put(hello.incarnation);
    writer.put(hello.path);
    writer.put(hello.paths);
    writer.put(kReserved);
    writer.put(hello.speed_mbps);
    writer.put(hello.remote_link);
    writer.put(hello.flags);
    writer.put(hello.absent);
    writer.put_bytes(hello.link, sizeof(hello.link));
    if (hello.home.address.family != 0) {
        put_endpoint(writer, hello.home);
    }
    writer.zeros();
    out[kKindAt] = static_cast<std::byte>(hello.kind);
    out[kKindAt + 1] = static_cast<std::byte>(hello.remote_port);
    seal(out);
}

Decoded decode(std::span<const std::byte, kHelloBytes> in, Hello& hello) {
    ByteReader reader(in);
    if (reader.get<std::uint32_t>() != kHelloMagic) {
        return Decoded::NotDeft;
    }
    hello.version = reader.get<std::uint16_t>();
    const auto bytes = reader.get<std::uint16_t>();
    // One of another length ends elsewhere.
    if (!sealed(in) && (spoken(hello.version) || bytes == kHelloBytes)) {
        return Decoded::Damaged;
    }
    if (!spoken(hello.version)) {
        return Decoded::WrongVersion;
    }
    hello.listener = reader.get<std::uint64_t>();
    reader.get_bytes(hello.secret.data(), hello.secret.size());
    hello.connection = reader.get<std::uint64_t>();
    hello.incarnation = reader.get<std::uint32_t>();
    hello.path = reader.get<std::uint16_t>();
    hello.paths = reader.get<std::uint16_t>();
    reader.get<std::int32_t>();
    hello.speed_mbps = reader.get<std::uint32_t>();
    hello.remote_link = reader.get<std::uint8_t>();
    hello.flags = reader.get<std::uint8_t>();
    hello.absent = reader.get<std::uint16_t>();
    reader.get_bytes(hello.link, sizeof(hello.link));
    for (char& letter : hello.link) {  // it ends up in log lines
        letter = letter >= 0x20 && letter < 0x7f ? letter : '\0';
    }
    hello.link[sizeof(hello.link) - 1] = '\0';
    if (!get_endpoint(reader, hello.home)) {  // zeros: it has none
        hello.home = Endpoint{};
    }
    hello.kind = static_cast<std::uint8_t>(in[kKindAt]);
    hello.remote_port = static_cast<std::uint8_t>(in[kKindAt + 1]);
    const bool sane = bytes == kHelloBytes && hello.paths > 0 && hello.paths <= kMaxPaths &&
                      hello.path < hello.paths && hello.remote_link < kMaxLinks &&
                      hello.remote_port < kMaxPorts;
    return sane ? Decoded::Ok : Decoded::Malformed;
}

void encode(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out) {
    ByteWriter writer(out);
    writer.put(kWelcomeMagic);
    writer.put(welcome.version);
    writer.put(static_cast<std::uint16_t>(kWelcomeBytes));
    writer.put(welcome.answer);
    writer.put(static_cast<std::uint16_t>(welcome.endpoints.count));
    writer.put(welcome.speed_mbps);
    writer.put(welcome.completed);
    writer.put(welcome.posted);
    for (std::size_t i = 0; i < welcome.endpoints.count; ++i) {
        put_endpoint(writer, welcome.endpoints.entries[i]);
    }
    const std::size_t left = writer.left() - kSealBytes;
    const std::size_t ports = left == 0 ? 0 : ports_in(welcome.ports, left - 1);
    if (ports > 0) {
        writer.put(static_cast<std::uint8_t>(ports));
        put_ports(writer, welcome.ports, ports);
    }
    writer.zeros();
    seal(out);
}

Decoded decode(std::span<const std::byte, kWelcomeBytes> in, Welcome& welcome) {
    ByteReader reader(in);
    if (reader.get<std::uint32_t>() != kWelcomeMagic) {
        return Decoded::NotDeft;
    }
    welcome.version = reader.get<std::uint16_t>();
    const auto bytes = reader.get<std::uint16_t>();
    // One of another length ends elsewhere.
    if (!sealed(in) && (spoken(welcome.version) || bytes == kWelcomeBytes)) {
        return Decoded::Damaged;
    }
    if (!spoken(welcome.version)) {
        return Decoded::WrongVersion;
    }
    const auto answer = reader.get<std::uint16_t>();
    const auto count = reader.get<std::uint16_t>();
    welcome.speed_mbps = reader.get<std::uint32_t>();
    welcome.completed = reader.get<std::uint64_t>();
    welcome.posted = reader.get<std::uint64_t>();
    if (bytes != kWelcomeBytes || answer > static_cast<std::uint16_t>(Answer::Closed) ||
        welcome.completed > welcome.posted || !get_endpoints(reader, count, welcome.endpoints)) {
        return Decoded::Malformed;
    }
    // The first releases have zeros there, or with many endpoints no room.
    const std::size_t ports = reader.left() > kSealBytes ? reader.get<std::uint8_t>() : 0;
    if (!get_ports(reader, ports, welcome.ports)) {
        return Decoded::Malformed;
    }
    welcome.answer = static_cast<Answer>(answer);
    return Decoded::Ok;
}

void encode(const ChunkHeader& header, std::span<std::byte, kChunkBytes> out) {
    const Chunk& chunk = header.chunk;
    ByteWriter writer(out);
    writer.put(kChunkMagic);
    writer.put(header.type);
    writer.put(static_cast<std::uint8_t>(header.flags | (chunk.kept ? kFlagKept : 0)));
    writer.put(chunk.length);
    writer.put(chunk.message);
    writer.put(chunk.total);
    writer.put(chunk.offset);
    writer.put(chunk.chunk_size);
    writer.put(chunk.index);
    writer.put(std::uint16_t{0});
    writer.put(header.checksum);
    seal(out);
}

Decoded decode(std::span<const std::byte, kChunkBytes> in, ChunkHeader& header) {
    ByteReader reader(in);
    if (reader.get<std::uint16_t>() != kChunkMagic) {
        return Decoded::NotDeft;
    }
    if (!sealed(in)) {
        return Decoded::Damaged;
    }
    const auto type = reader.get<std::uint8_t>();
    header.flags = reader.get<std::uint8_t>();
    Chunk& chunk = header.chunk;
    chunk.kept = (header.flags & kFlagKept) != 0;
    chunk.length = reader.get<std::uint32_t>();
    chunk.message = reader.get<std::uint64_t>();
    chunk.total = reader.get<std::uint64_t>();
    chunk.offset = reader.get<std::uint64_t>();
    chunk.chunk_size = reader.get<std::uint32_t>();
    chunk.index = reader.get<std::uint16_t>();
    reader.get<std::uint16_t>();
    header.checksum = reader.get<std::uint32_t>();
    chunk.data = nullptr;
    bool sane = false;
    switch (type) {
        case static_cast<std::uint8_t>(FrameType::Bye):
            header.type = FrameType::Bye;
            sane = chunk.length == 0;
            break;
        case static_cast<std::uint8_t>(FrameType::Probe):
            header.type = FrameType::Probe;
            sane = chunk.message == kProbe && chunk.length > 0 && chunk.length <= kMaxProbe;
            break;
        case static_cast<std::uint8_t>(FrameType::Fence):
            header.type = FrameType::Fence;
            sane = chunk.length == 0 && chunk.total == 0 && chunk.offset == 0 &&
                   chunk.chunk_size == 0 && chunk.index < kMaxPaths &&
                   chunk.message <= std::numeric_limits<std::uint32_t>::max();
            break;
        case static_cast<std::uint8_t>(FrameType::Chunk):
            header.type = FrameType::Chunk;
            sane = sane_chunk(chunk);
            break;
    }
    return sane ? Decoded::Ok : Decoded::Malformed;
}

void encode(const Control& control, std::span<std::byte, kControlBytes> out) {
    ByteWriter writer(out);
    writer.put(kControlMagic);
    writer.put(control.kind);
    writer.put(static_cast<std::uint8_t>(control.path));
    writer.put(control.received);
    const bool fenced = control.kind == Control::Kind::Fenced;
    writer.put(fenced ? std::uint64_t{control.incarnation} : control.completed);
    writer.put(fenced ? std::uint64_t{0} : control.posted);
    seal(out);
}

Decoded decode(std::span<const std::byte, kControlBytes> in, Control& control) {
    ByteReader reader(in);
    if (reader.get<std::uint16_t>() != kControlMagic) {
        return Decoded::NotDeft;
    }
    if (!sealed(in)) {
        return Decoded::Damaged;
    }
    const auto kind = reader.get<std::uint8_t>();
    control.path = reader.get<std::uint8_t>();
    control.received = reader.get<std::uint64_t>();
    control.completed = reader.get<std::uint64_t>();
    control.posted = reader.get<std::uint64_t>();
    control.incarnation = 0;
    if (kind < static_cast<std::uint8_t>(Control::Kind::State) ||
        kind > static_cast<std::uint8_t>(Control::Kind::Fenced) || control.path >= kMaxPaths) {
        return Decoded::Malformed;
    }
    control.kind = static_cast<Control::Kind>(kind);
    if (control.kind == Control::Kind::Fenced) {
        const std::uint64_t incarnation = std::exchange(control.completed, 0);
        control.incarnation = static_cast<std::uint32_t>(incarnation);
        return control.incarnation == incarnation && control.posted == 0 ? Decoded::Ok
                                                                         : Decoded::Malformed;
    }
    return control.completed <= control.posted ? Decoded::Ok : Decoded::Malformed;
}

}  // namespace deft::net::wire
