// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/granted_frame.h"

#include <limits>

#include "base/bytes.h"
#include "plugin/core/chunk_rules.h"
#include "plugin/core/copy_in_order.h"

namespace deft::net {
namespace {

constexpr std::uint16_t kMagic = 0xDEF6;
constexpr std::uint8_t kKept = 1;
constexpr std::uint8_t kOnGpu = 1;  // Grant::on_gpu

void put_chunk(ByteWriter& out, const Chunk& chunk) {
    out.put<std::uint8_t>(chunk.kept ? kKept : 0);
    out.put(chunk.length);
    out.put(chunk.message);
    out.put(chunk.total);
    out.put(chunk.offset);
    out.put(chunk.chunk_size);
    out.put(chunk.index);
}

bool get_chunk(ByteReader& in, Chunk& chunk) {
    chunk.kept = (in.get<std::uint8_t>() & kKept) != 0;
    chunk.length = in.get<std::uint32_t>();
    chunk.message = in.get<std::uint64_t>();
    chunk.total = in.get<std::uint64_t>();
    chunk.offset = in.get<std::uint64_t>();
    chunk.chunk_size = in.get<std::uint32_t>();
    chunk.index = in.get<std::uint16_t>();
    return in.ok() && sane_run(chunk);
}

void put_control(ByteWriter& out, const Control& control) {
    out.put(control.kind);
    out.put(control.path);
    out.put(control.incarnation);
    out.put(control.received);
    out.put(control.completed);
    out.put(control.posted);
}

bool get_control(ByteReader& in, Control& control) {
    const auto kind = in.get<std::uint8_t>();
    control.kind = static_cast<Control::Kind>(kind);
    control.path = in.get<std::uint16_t>();
    control.incarnation = in.get<std::uint32_t>();
    control.received = in.get<std::uint64_t>();
    control.completed = in.get<std::uint64_t>();
    control.posted = in.get<std::uint64_t>();
    return in.ok() && kind >= static_cast<std::uint8_t>(Control::Kind::State) &&
           kind <= static_cast<std::uint8_t>(Control::Kind::Fenced) &&
           control.completed <= control.posted;
}

void put_grant(ByteWriter& out, const Grant& grant) {
    out.put(grant.message);
    out.put(grant.address);
    out.put(grant.capacity);
    out.put(grant.key);
    out.put(grant.on_gpu ? kOnGpu : std::uint8_t{0});
}

bool get_grant(ByteReader& in, Grant& grant) {
    grant.message = in.get<std::uint64_t>();
    grant.address = in.get<std::uint64_t>();
    grant.capacity = in.get<std::uint64_t>();
    grant.key = in.get<std::uint32_t>();
    grant.on_gpu = (in.get<std::uint8_t>() & kOnGpu) != 0;
    return in.ok() && grant.message != kProbe &&
           grant.capacity <= std::numeric_limits<std::uint64_t>::max() - grant.address;
}

}  // namespace

void encode(const GrantedFrame& frame, std::span<std::byte, kGrantedFrameBytes> out) {
    ByteWriter writer(out);
    writer.put(kMagic);
    writer.put(frame.kind);
    switch (frame.kind) {
        case GrantedFrameKind::Carried:
        case GrantedFrameKind::Written:
            put_chunk(writer, frame.chunk);
            break;
        case GrantedFrameKind::Control:
            put_control(writer, frame.control);
            break;
        case GrantedFrameKind::Grant:
            put_grant(writer, frame.grant);
            break;
        case GrantedFrameKind::Fence:
            writer.put(frame.control.path);
            writer.put(frame.control.incarnation);
            break;
        case GrantedFrameKind::Greeting:
        case GrantedFrameKind::Bye:
            break;
    }
    writer.zeros();
}

bool decode(std::span<const std::byte, kGrantedFrameBytes> in, GrantedFrame& frame) {
    ByteReader reader(in);
    if (reader.get<std::uint16_t>() != kMagic) {
        return false;
    }
    frame.kind = reader.get<GrantedFrameKind>();
    switch (frame.kind) {
        case GrantedFrameKind::Carried:
            return get_chunk(reader, frame.chunk) && sane_chunk(frame.chunk);
        case GrantedFrameKind::Written:
            return get_chunk(reader, frame.chunk);
        case GrantedFrameKind::Control:
            return get_control(reader, frame.control);
        case GrantedFrameKind::Grant:
            return get_grant(reader, frame.grant);
        case GrantedFrameKind::Fence:
            frame.control.path = reader.get<std::uint16_t>();
            frame.control.incarnation = reader.get<std::uint32_t>();
            return true;
        case GrantedFrameKind::Greeting:
        case GrantedFrameKind::Bye:
            return true;
    }
    return false;
}

bool hand_over(const GrantedFrame& frame, const std::byte* bytes, PathRole role,
               PathEvents& events) {
    const bool from_sender = role == PathRole::Receiver;
    switch (frame.kind) {
        case GrantedFrameKind::Greeting:
            return true;
        case GrantedFrameKind::Carried: {
            std::byte* destination = nullptr;
            const auto place =
                from_sender ? events.place(frame.chunk, destination) : PathEvents::Place::Refuse;
            if (place == PathEvents::Place::Refuse) {
                return false;
            }
            if (place == PathEvents::Place::Store && frame.chunk.length > 0) {
                copy_in_order(destination, bytes, frame.chunk.length);
            }
            events.arrived(frame.chunk);
            return true;
        }
        case GrantedFrameKind::Written:
            return from_sender && events.landed(frame.chunk) != PathEvents::Place::Refuse;
        case GrantedFrameKind::Bye:
            events.peer_closed();
            return from_sender;
        case GrantedFrameKind::Control:
            events.control(frame.control);
            return true;
        case GrantedFrameKind::Grant:
            events.granted(frame.grant);
            return !from_sender;
        case GrantedFrameKind::Fence:
            events.fence_asked(frame.control.path, frame.control.incarnation);
            return from_sender;
    }
    return false;
}

}  // namespace deft::net
