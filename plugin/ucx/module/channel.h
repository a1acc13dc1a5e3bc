// SPDX-License-Identifier: Apache-2.0
// One peer: a UCP worker of its own, so that its end is the end of everything that could still
// write into memory; an endpoint; frames in order both ways.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "deft/abi/ucx_module.h"
#include "plugin/ucx/module/device.h"

namespace deft::ucx {

// One thread at a time.
class Channel {
public:
    // NULL and the cause.
    static Channel* make(Device& device, char* problem, std::size_t room);
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    std::size_t address(const void** at) const;
    deft_ucx_result_t connect(const void* address, std::size_t bytes);
    deft_ucx_result_t send(const void* frame, const void* data, std::uint64_t bytes,
                           std::uint32_t key);
    deft_ucx_result_t progress(const deft_ucx_sink_t& sink, std::size_t most);
    std::uint64_t acknowledged() const;
    std::uint64_t heard() const { return heard_; }
    const char* failure() const { return failed_ ? failure_.data() : nullptr; }
    void end(bool orderly);

private:
    // Before each frame; numbers in the byte order of the sender, as UCX itself has it.
    struct Header {
        std::uint64_t magic;
        std::uint64_t number;  // of the frame, from 0; kNoFrame: an acknowledgement alone
        std::uint64_t taken;   // frames of the other direction that have been taken
        std::array<std::byte, DEFT_UCX_FRAME_BYTES> frame;
    };
    static constexpr std::uint64_t kMagic = 0x3158435554464544;  // "DEFTUCX1"
    static constexpr std::uint64_t kNoFrame = ~std::uint64_t{0};
    static constexpr std::size_t kDepth = DEFT_UCX_DEPTH;
    // Of what is on its way out.
    struct Outgoing {
        Channel* channel = nullptr;
        Header header{};
        bool open = false;      // UCX may read it
        std::uint32_t key = 0;  // of the memory that it reads, while it is open
    };
    // Memory that is fetched to. Not the job's: UCX may copy with memcpy, in whose middle NCCL's
    // GPUs would find flags before their data (plugin/core/copy_in_order.h).
    struct Stage {
        std::unique_ptr<std::byte[]> memory;
        std::uint64_t bytes = 0;
        bool used = false;
    };
    struct Incoming {
        enum class State { None, Here, Offered, Fetching, Fetched };
        Channel* channel = nullptr;
        State state = State::None;
        Header header{};
        std::uint64_t bytes = 0;
        void* offer = nullptr;   // UCX's, of data that wait to be fetched
        Stage* stage = nullptr;  // where they are, or are being, fetched to
    };
    using Data = std::array<std::byte, DEFT_UCX_DATA_BYTES>;

    explicit Channel(Device& device);
    bool prepare(char* problem, std::size_t room);
    Data* data_of(std::unique_ptr<Data[]>& all, std::uint64_t number);
    deft_ucx_result_t post(Outgoing& out, const void* data, std::uint64_t bytes, std::uint32_t key,
                           bool bulk);
    void acknowledge();
    ucs_status_t came(const Header& header, void* data, std::uint64_t bytes, bool offered);
    void fetch();
    bool fetch(Incoming& in);
    bool hand_over(const deft_ucx_sink_t& sink, std::size_t most);
    void let_go(std::uint32_t& key);
    void fail(const char* what, const char* why);

    static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes,
                                   void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
    static void on_sent(void* request, ucs_status_t status, void* out);
    static void on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* in);
    static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);

    Device& device_;
    ucp_worker_h worker_ = nullptr;
    ucp_ep_h endpoint_ = nullptr;
    ucp_address_t* address_ = nullptr;
    std::size_t address_bytes_ = 0;
    bool failed_ = false;
    std::array<char, 200> failure_{};
    bool broken_ = false;  // by the peer: what comes after that is not handed over

    std::array<Outgoing, kDepth> out_;
    std::unique_ptr<Data[]> out_data_;
    std::uint64_t sent_ = 0;
    std::uint64_t taken_by_peer_ = 0;
    mutable std::uint64_t acknowledged_ = 0;
    Outgoing word_;         // an acknowledgement alone
    std::size_t open_ = 0;  // requests that UCX has

    std::array<Incoming, kDepth> in_;
    std::unique_ptr<Data[]> in_data_;
    std::array<Stage, 4> stages_;
    std::uint64_t looked_at_ = 0;  // frames whose data are here, or being fetched
    std::uint64_t taken_ = 0;
    std::uint64_t told_taken_ = 0;
    std::uint64_t heard_ = 0;
};

}  // namespace deft::ucx
