// SPDX-License-Identifier: Apache-2.0
// A decoder of what a peer may send, chosen by FUZZ_...: each is a program of its own. What passes
// must be within its limits and survive being encoded and decoded again.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "plugin/core/chunk_rules.h"
#include "plugin/tcp/wire.h"

using namespace deft::net;

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

// Decodes `size` input bytes, padded with zeros, as a T of N bytes; if good, checks the round trip.
template <class T, std::size_t N, class Check>
void decode_as(const std::uint8_t* data, std::size_t size, Check&& check) {
    std::array<std::byte, N> bytes{};
    std::memcpy(bytes.data(), data, size < N ? size : N);
    if (!std::is_same_v<T, wire::Handle>) {
        // No checksum is hit by chance; every eighth keeps its own.
        if (size > 0 && data[size - 1] % 8 != 0) {
            wire::seal(bytes);
        }
    }
    T value;
    if (wire::decode(std::span<const std::byte, N>(bytes), value) != wire::Decoded::Ok) {
        return;
    }
    check(value);
    std::array<std::byte, N> again;
    wire::encode(value, std::span<std::byte, N>(again));
    T back;
    require(wire::decode(std::span<const std::byte, N>(again), back) == wire::Decoded::Ok);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
#if defined(FUZZ_HANDLE)
    decode_as<wire::Handle, wire::kHandleBytes>(data, size, [](const wire::Handle& handle) {
        require(handle.endpoints.count >= 1 && handle.endpoints.count <= wire::kMaxEndpoints);
        for (std::size_t i = 0; i < handle.endpoints.count; ++i) {
            require(handle.endpoints.entries[i].link < wire::kMaxLinks);
        }
    });
#elif defined(FUZZ_HELLO)
    decode_as<wire::Hello, wire::kHelloBytes>(data, size, [](const wire::Hello& hello) {
        require(hello.path < hello.paths && hello.paths <= wire::kMaxPaths);
        require(std::memchr(hello.link, 0, sizeof(hello.link)) != nullptr);
    });
#elif defined(FUZZ_WELCOME)
    decode_as<wire::Welcome, wire::kWelcomeBytes>(data, size, [](const wire::Welcome& welcome) {
        require(welcome.endpoints.count <= wire::kMaxEndpoints);
        require(welcome.completed <= welcome.posted);
    });
#elif defined(FUZZ_CHUNK)
    decode_as<wire::ChunkHeader, wire::kChunkBytes>(
        data, size, [](const wire::ChunkHeader& header) {
            const Chunk& chunk = header.chunk;
            if (header.type == wire::FrameType::Chunk) {
                require(chunk.index < kMaxChunks);
                require(chunk.offset + chunk.length <= chunk.total &&
                        chunk.offset + chunk.length >= chunk.offset);
            }
            if (header.type == wire::FrameType::Fence) {
                require(chunk.index < wire::kMaxPaths && chunk.length == 0);
            }
        });
#elif defined(FUZZ_CONTROL)
    decode_as<Control, wire::kControlBytes>(data, size, [](const Control& control) {
        require(control.path < wire::kMaxPaths && control.completed <= control.posted);
    });
#endif
    return 0;
}
