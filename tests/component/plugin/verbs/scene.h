// SPDX-License-Identifier: Apache-2.0
// Two devices of the software verbs device, and a path between them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/verbs/handshake.h"
#include "plugin/verbs/verbs_path.h"
#include "tests/component/plugin/verbs/softverbs_library.h"

namespace deft::net::testing {

// False after ten seconds.
inline bool eventually(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done()) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

// The path as one of this kind.
inline Handshake::Result go_on(VerbsHandshake& handshake, std::unique_ptr<VerbsPath>& path) {
    std::unique_ptr<Path> made;
    const Handshake::Result result = handshake.poll(made);
    if (made != nullptr) {
        path.reset(static_cast<VerbsPath*>(made.release()));
    }
    return result;
}

// What a path has told.
class Told final : public PathEvents {
public:
    Place place(const Chunk& chunk, std::byte*& destination) override {
        destination = memory != nullptr ? memory + chunk.offset : nullptr;
        return memory != nullptr ? Place::Store : Place::Refuse;
    }
    void arrived(const Chunk& chunk) override { carried.push_back(chunk); }
    void control(const Control& control) override { controls.push_back(control); }
    void peer_closed() override { ++closed; }
    void granted(const Grant& grant) override { grants.push_back(grant); }
    void acknowledged(std::uint64_t chunks) override { acks = chunks; }
    Place landed(const Chunk& chunk) override {
        written.push_back(chunk);
        return Place::Store;
    }

    std::byte* memory = nullptr;  // where chunks that come along go
    std::vector<Chunk> carried;
    std::vector<Chunk> written;
    std::vector<Control> controls;
    std::vector<Grant> grants;
    std::uint64_t acks = 0;
    int closed = 0;
};

inline const VerbsQueuePair::Options kOptions = [] {
    VerbsQueuePair::Options options;
    options.gid_index = 3;  // RoCE v2, IPv4
    return options;
}();

// One end: a device, its domain, memory that is registered there, and the path.
class End {
public:
    static constexpr std::size_t kBytes = 1 << 20;

    explicit End(const char* device) : memory(kBytes) {
        std::string problem;
        const VerbsLibrary* const library = process_verbs_library(problem);
        if (library == nullptr) {
            ADD_FAILURE() << problem;
            return;
        }
        context = VerbsContext::open(*library, device, problem);
        domain = VerbsDomain::make(context, problem);
        std::vector<std::shared_ptr<Domain>> domains = {domain};
        Memory all;
        all.data = memory.data();
        all.size = memory.size();
        region = std::make_unique<Region>(all, domains, problem);
        EXPECT_EQ(problem, "");
    }

    void make_pair(VerbsPath::Role role) {
        std::string problem;
        VerbsQueuePair::Options options = kOptions;
        VerbsPath::size(options);
        pair = VerbsQueuePair::make(domain, options, problem);
        ASSERT_NE(pair, nullptr) << problem;
        path = VerbsPath::make(pair, role, problem);
        ASSERT_NE(path, nullptr) << problem;
    }
    Grant grant(std::uint64_t message, std::size_t offset, std::size_t bytes) const {
        return {message, reinterpret_cast<std::uint64_t>(memory.data() + offset), bytes,
                region->in(domain.get())->remote_key};
    }

    std::vector<std::byte> memory;
    std::shared_ptr<VerbsContext> context;
    std::shared_ptr<VerbsDomain> domain;
    std::unique_ptr<Region> region;
    std::shared_ptr<VerbsQueuePair> pair;
    std::unique_ptr<VerbsPath> path;
    Told told;
};

class Scene : public ::testing::Test {
protected:
    void connect() {
        int both[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
        VerbsHandshake from(near.domain, kOptions, VerbsPath::Role::Sender, UniqueFd(both[0]));
        VerbsHandshake to(far.domain, kOptions, VerbsPath::Role::Receiver, UniqueFd(both[1]));
        ASSERT_TRUE(eventually([&] {
            for (auto [handshake, end] : {std::pair(&from, &near), std::pair(&to, &far)}) {
                if (end->path == nullptr) {
                    (void)go_on(*handshake, end->path);
                }
            }
            return near.path != nullptr && far.path != nullptr;
        })) << from.failure()
            << to.failure();
    }
    // Both ends, once. Returns true.
    bool poll() {
        near.path->poll(near.told, true);
        far.path->poll(far.told, true);
        return true;
    }
    // A chunk of the near end's memory, which is a message of its own.
    Chunk chunk(std::uint64_t message, std::size_t offset, std::size_t bytes) {
        Chunk made;
        made.message = message;
        made.total = bytes;
        made.chunk_size = bytes != 0 ? static_cast<std::uint32_t>(bytes) : 0;
        made.length = static_cast<std::uint32_t>(bytes);
        made.data = near.memory.data() + offset;
        made.region = near.region.get();
        return made;
    }
    // Writes it to the far end's memory at `to`.
    Post write(Chunk chunk, std::size_t to) {
        const Grant grant = far.grant(chunk.message, to, chunk.total);
        chunk.grant = &grant;
        return near.path->post(chunk);
    }
    void fill(End& end, int value) { std::memset(end.memory.data(), value, end.memory.size()); }

    using State = VerbsQueuePair::State;
    End near{"near"};
    End far{"far"};
};

}  // namespace deft::net::testing
