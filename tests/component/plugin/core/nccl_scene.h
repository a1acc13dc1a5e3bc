// SPDX-License-Identifier: Apache-2.0
// One connection through the plugin's own table, as NCCL makes and drives it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "plugin/core/sender.h"
#include "tests/component/plugin/process_threads.h"
#include "tests/component/plugin/relay.h"

extern "C" {
extern const deft_net_v11_t ncclNetPlugin_v11;
}

namespace deft::net::testing {

inline constexpr const deft_net_v11_t& kNet = ncclNetPlugin_v11;

// A connection as NCCL makes it, whose first `relays` endpoints are reached through relays.
class Scene {
public:
    Scene(std::size_t links, std::size_t relays) {
        set_process_device(loopback_device(links));
        std::array<std::byte, wire::kHandleBytes> handle{};
        deft_net_comm_config_t config{DEFT_NET_TRAFFIC_CLASS_UNDEF};
        EXPECT_EQ(kNet.init(&context_, 1, &config, nullptr, nullptr), 0);
        EXPECT_EQ(kNet.listen(context_, 0, handle.data(), &listener_), 0);
        EXPECT_TRUE(wait_for([] { return threads_named("deft-care") == 0; }));  // of the last test
        wire::Handle decoded;
        EXPECT_EQ(wire::decode(handle, decoded), wire::Decoded::Ok);
        for (std::size_t i = 0; i < relays; ++i) {
            relay.push_back(std::make_unique<Relay>(decoded.endpoints.entries[i]));
        }
        wire::encode(decoded, handle);
        EXPECT_TRUE(wait_for([&] {
            step();
            deft_net_device_handle_t* device = nullptr;
            EXPECT_TRUE(sender_ != nullptr ||
                        kNet.connect(context_, 0, handle.data(), &sender_, &device) == 0);
            EXPECT_TRUE(receiver_ != nullptr || kNet.accept(listener_, &receiver_, &device) == 0);
            return sender_ != nullptr && receiver_ != nullptr;
        }));
    }
    ~Scene() {
        EXPECT_EQ(kNet.closeSend(sender_), 0);
        EXPECT_EQ(kNet.closeRecv(receiver_), 0);
        EXPECT_EQ(kNet.closeListen(listener_), 0);
        EXPECT_EQ(kNet.finalize(context_), 0);
        EXPECT_TRUE(wait_for([] { return threads_named("deft-care") == 0; }));
        set_process_device(nullptr);
    }
    Scene(const Scene&) = delete;
    Scene& operator=(const Scene&) = delete;

    void* isend(std::vector<std::byte>& data) {
        void* request = nullptr;
        EXPECT_TRUE(wait_for([&] {
            EXPECT_EQ(kNet.isend(sender_, data.data(), data.size(), 0, nullptr, nullptr, &request),
                      0);
            return request != nullptr;
        }));
        return request;
    }
    void* irecv(std::vector<std::byte>& buffer) {
        void* request = nullptr;
        EXPECT_TRUE(wait_for([&] {
            void* data = buffer.data();
            std::size_t size = buffer.size();
            int tag = 0;
            void* none = nullptr;
            EXPECT_EQ(kNet.irecv(receiver_, 1, &data, &size, &tag, &none, &none, &request), 0);
            return request != nullptr;
        }));
        return request;
    }
    bool done(void* request) {
        int done = 0;
        EXPECT_EQ(kNet.test(request, &done, nullptr), 0);
        step();
        return done != 0;
    }
    std::uint64_t moved_at_sender() {
        auto& sender = static_cast<Sender&>(*static_cast<ConnectionEnd*>(sender_));
        const Call call(sender);
        return call ? sender.moved() : 0;
    }
    void close_sender() {
        EXPECT_EQ(kNet.closeSend(sender_), 0);
        sender_ = nullptr;
    }
    // As the process's atexit handlers may, in a child.
    void close_inherited(void* memory_handle) {
        EXPECT_EQ(kNet.deregMr(receiver_, memory_handle), 0);
        EXPECT_EQ(kNet.closeSend(sender_), 0);
        EXPECT_EQ(kNet.closeRecv(receiver_), 0);
    }
    void* register_for_receiver(std::vector<std::byte>& buffer) {
        void* handle = nullptr;
        EXPECT_EQ(kNet.regMr(receiver_, buffer.data(), buffer.size(), DEFT_NET_PTR_HOST, &handle),
                  0);
        return handle;
    }
    void deregister(void* handle) { EXPECT_EQ(kNet.deregMr(receiver_, handle), 0); }
    void step() {
        for (const auto& each : relay) {
            each->step();
        }
    }

    std::vector<std::unique_ptr<Relay>> relay;

private:
    void* context_ = nullptr;
    void* listener_ = nullptr;
    void* sender_ = nullptr;
    void* receiver_ = nullptr;
};

}  // namespace deft::net::testing
