// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/module/channel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace deft::ucx {
namespace {

constexpr unsigned kMessage = 0xDE;  // of our active messages
constexpr int kAtOnce = 8;           // rounds of UCX's in one of ours: other paths get their turn
constexpr auto kCloseLimit = std::chrono::milliseconds(500);
constexpr auto kIdleLimit = std::chrono::milliseconds(100);

template <class Done>
void progress_until(ucp_worker_h worker, std::chrono::milliseconds limit, Done&& done) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!done() && std::chrono::steady_clock::now() < end) {
        (void)ucp_worker_progress(worker);
    }
}

}  // namespace

Channel* Channel::make(Device& device, char* problem, std::size_t room) {
    std::unique_ptr<Channel> made(new Channel(device));
    return made->prepare(problem, room) ? made.release() : nullptr;
}

Channel::Channel(Device& device) : device_(device) {
    for (Outgoing& out : out_) {
        out.channel = this;
    }
    for (Incoming& in : in_) {
        in.channel = this;
    }
    word_.channel = this;
}

Channel::~Channel() {
    end(false);
}

bool Channel::prepare(char* problem, std::size_t room) {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    ucs_status_t status = ucp_worker_create(device_.context(), &params, &worker_);
    if (status != UCS_OK) {
        say(problem, room, "ucp_worker_create", ucs_status_string(status));
        return false;
    }
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kMessage;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = on_message;
    handler.arg = this;
    status = ucp_worker_set_am_recv_handler(worker_, &handler);
    if (status != UCS_OK) {
        say(problem, room, "ucp_worker_set_am_recv_handler", ucs_status_string(status));
        return false;
    }
    status = ucp_worker_get_address(worker_, &address_, &address_bytes_);
    if (status != UCS_OK) {
        say(problem, room, "ucp_worker_get_address", ucs_status_string(status));
        return false;
    }
    if (address_bytes_ > DEFT_UCX_ADDRESS_BYTES) {
        say(problem, room, "ucp_worker_get_address", "the address is too long");
        return false;
    }
    return true;
}

std::size_t Channel::address(const void** at) const {
    *at = address_;
    return address_bytes_;
}

deft_ucx_result_t Channel::connect(const void* address, std::size_t bytes) {
    (void)bytes;  // an address says itself how long it is
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = static_cast<const ucp_address_t*>(address);
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = on_error;
    params.err_handler.arg = this;
    const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint_);
    if (status != UCS_OK) {
        endpoint_ = nullptr;
        fail("ucp_ep_create", ucs_status_string(status));
    }
    return failed_ ? DEFT_UCX_FAILED : DEFT_UCX_OK;
}

// The first cause is kept: all others follow from it.
void Channel::fail(const char* what, const char* why) {
    if (!failed_) {
        failed_ = true;
        say(failure_.data(), failure_.size(), what, why);
    }
}

void Channel::on_error(void* self, ucp_ep_h /*endpoint*/, ucs_status_t status) {
    static_cast<Channel*>(self)->fail("UCX has lost the peer", ucs_status_string(status));
}

// Pages that are never used cost nothing. NULL: there is no memory. Nothing is thrown, as UCX calls
// this too, and is C.
Channel::Data* Channel::data_of(std::unique_ptr<Data[]>& all, std::uint64_t number) {
    if (all == nullptr) {
        all.reset(new (std::nothrow) Data[kDepth]);
    }
    if (all == nullptr) {
        fail("a channel's frames", "no memory");
        return nullptr;
    }
    return &all[number % kDepth];
}

deft_ucx_result_t Channel::send(const void* frame, const void* data, std::uint64_t bytes,
                                std::uint32_t key) {
    if (failed_ || bytes > (key != 0 ? DEFT_UCX_BULK_BYTES : DEFT_UCX_DATA_BYTES)) {
        return DEFT_UCX_FAILED;
    }
    Outgoing& out = out_[sent_ % kDepth];
    if (endpoint_ == nullptr || sent_ - acknowledged() >= kDepth || out.open) {
        return DEFT_UCX_AGAIN;
    }
    const bool bulk = key != 0;
    if (!bulk && bytes > 0) {
        Data* const copy = data_of(out_data_, sent_);
        if (copy == nullptr) {
            return DEFT_UCX_FAILED;
        }
        std::memcpy(copy->data(), data, bytes);
        data = copy->data();
    }
    out.header.number = sent_++;
    std::memcpy(out.header.frame.data(), frame, out.header.frame.size());
    return post(out, data, bytes, key, bulk);
}

// Key 0 is nobody's memory.
void Channel::let_go(std::uint32_t& key) {
    if (key != 0) {
        device_.use(std::exchange(key, 0), -1);
    }
}

deft_ucx_result_t Channel::post(Outgoing& out, const void* data, std::uint64_t bytes,
                                std::uint32_t key, bool bulk) {
    out.header.magic = kMagic;
    out.header.taken = told_taken_ = taken_;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                         UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.flags = bulk ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    param.cb.send = on_sent;
    param.user_data = &out;
    if (const ucp_mem_h memory = bulk ? device_.memory(key) : nullptr; memory != nullptr) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh = memory;
    }
    out.open = true;
    out.key = key;
    device_.use(key, key != 0 ? 1 : 0);
    ++open_;
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint_, kMessage, &out.header, sizeof(out.header), data, bytes, &param);
    if (request == nullptr || UCS_PTR_IS_ERR(request)) {  // at once, and on_sent is not called
        out.open = false;
        let_go(out.key);
        --open_;
    }
    if (UCS_PTR_IS_ERR(request)) {
        fail("ucp_am_send_nbx", ucs_status_string(UCS_PTR_STATUS(request)));
        return DEFT_UCX_FAILED;
    }
    return DEFT_UCX_OK;
}

void Channel::on_sent(void* request, ucs_status_t status, void* of) {
    auto& out = *static_cast<Outgoing*>(of);
    out.open = false;
    out.channel->let_go(out.key);
    --out.channel->open_;
    if (status != UCS_OK) {
        out.channel->fail("ucp_am_send_nbx", ucs_status_string(status));
    }
    ucp_request_free(request);
}

std::uint64_t Channel::acknowledged() const {
    while (acknowledged_ < taken_by_peer_ && !out_[acknowledged_ % kDepth].open) {
        ++acknowledged_;
    }
    return acknowledged_;
}

// What has been taken goes with the next frame that there is; here is none.
void Channel::acknowledge() {
    if (told_taken_ == taken_ || word_.open || failed_ || endpoint_ == nullptr) {
        return;
    }
    word_.header.number = kNoFrame;
    (void)post(word_, nullptr, 0, 0, false);
}

ucs_status_t Channel::on_message(void* self, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param) {
    auto& channel = *static_cast<Channel*>(self);
    Header read;
    if (header_bytes != sizeof(read)) {
        channel.fail("the peer sent what cannot be", "a header of another length");
        return UCS_OK;
    }
    std::memcpy(&read, header, sizeof(read));
    return channel.came(read, data, bytes, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

// UCX may bring messages in another order than they were sent in.
ucs_status_t Channel::came(const Header& header, void* data, std::uint64_t bytes, bool offered) {
    ++heard_;
    const bool frame = header.number != kNoFrame;
    if (failed_ || header.magic != kMagic || header.taken > sent_ ||
        (frame && (header.number < taken_ || header.number - taken_ >= kDepth)) ||
        bytes > (offered ? DEFT_UCX_BULK_BYTES : DEFT_UCX_DATA_BYTES) ||
        (!frame && (offered || bytes != 0))) {
        fail("the peer sent what cannot be", "a header with wrong values");
        return UCS_OK;
    }
    taken_by_peer_ = header.taken > taken_by_peer_ ? header.taken : taken_by_peer_;
    if (!frame) {
        return UCS_OK;
    }
    Incoming& in = in_[header.number % kDepth];
    if (in.state != Incoming::State::None) {
        fail("the peer sent what cannot be", "a frame twice");
        return UCS_OK;
    }
    in.header = header;
    in.bytes = bytes;
    if (offered) {
        in.offer = data;
        in.state = Incoming::State::Offered;
        return UCS_INPROGRESS;  // it stays until it is fetched
    }
    if (bytes > 0) {
        Data* const copy = data_of(in_data_, header.number);
        if (copy == nullptr) {
            return UCS_OK;
        }
        std::memcpy(copy->data(), data, bytes);
    }
    in.state = Incoming::State::Here;
    return UCS_OK;
}

// In the order in which they were sent, but not one after the other.
void Channel::fetch() {
    while (!failed_ && looked_at_ - taken_ < kDepth) {
        Incoming& in = in_[looked_at_ % kDepth];
        if (in.state == Incoming::State::None || in.header.number != looked_at_) {
            return;
        }
        if (in.state == Incoming::State::Offered && !fetch(in)) {
            return;
        }
        ++looked_at_;
    }
}

// False: for the lack of a place, which the oldest of those in use will be, or of memory.
bool Channel::fetch(Incoming& in) {
    in.stage = std::find_if(stages_.begin(), stages_.end(),
                            [](const Stage& stage) { return !stage.used; });
    if (in.stage == stages_.end()) {
        return false;
    }
    if (in.stage->bytes < in.bytes) {
        in.stage->memory.reset(new std::byte[in.bytes]);
        in.stage->bytes = in.bytes;
    }
    in.stage->used = true;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    param.cb.recv_am = on_fetched;
    param.user_data = &in;
    in.state = Incoming::State::Fetching;
    ++open_;
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_, std::exchange(in.offer, nullptr),
                                                          in.stage->memory.get(), in.bytes, &param);
    if (request == nullptr || UCS_PTR_IS_ERR(request)) {
        --open_;
        in.state = Incoming::State::Fetched;
    }
    if (UCS_PTR_IS_ERR(request)) {
        in.state = Incoming::State::Fetching;  // for ever
        fail("ucp_am_recv_data_nbx", ucs_status_string(UCS_PTR_STATUS(request)));
        return false;
    }
    return true;
}

void Channel::on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* of) {
    auto& in = *static_cast<Incoming*>(of);
    --in.channel->open_;
    if (status == UCS_OK && bytes == in.bytes) {
        in.state = Incoming::State::Fetched;
    } else {
        in.channel->fail("ucp_am_recv_data_nbx", ucs_status_string(status));
    }
    ucp_request_free(request);
}

// What is whole, up to the first that is not.
bool Channel::hand_over(const deft_ucx_sink_t& sink, std::size_t most) {
    const std::uint64_t before = taken_;
    while (!broken_ && taken_ - before < most) {
        Incoming& in = in_[taken_ % kDepth];
        const bool here = in.state == Incoming::State::Here;
        if ((!here && in.state != Incoming::State::Fetched) || in.header.number != taken_) {
            break;
        }
        const std::byte* data = nullptr;
        if (in.bytes > 0) {
            data = here ? in_data_[taken_ % kDepth].data() : in.stage->memory.get();
        }
        const deft_ucx_result_t result =
            sink.taken(sink.user, in.header.frame.data(), data, in.bytes, here ? 0 : 1);
        in.state = Incoming::State::None;
        ++taken_;
        if (!here) {
            in.stage->used = false;
        }
        if (result != DEFT_UCX_OK) {
            fail("the peer breaks the protocol", "a frame that cannot be");
            broken_ = true;
        }
    }
    return taken_ != before;
}

deft_ucx_result_t Channel::progress(const deft_ucx_sink_t& sink, std::size_t most) {
    bool worked = false;
    for (int i = 0; worker_ != nullptr && i < kAtOnce && ucp_worker_progress(worker_) != 0; ++i) {
        worked = true;
    }
    if (worker_ != nullptr) {
        fetch();
    }
    // What came whole before a failure counts: the peer's word on what it sent goes by it.
    worked = hand_over(sink, most) || worked;
    if (failed_) {
        return DEFT_UCX_FAILED;
    }
    acknowledge();
    return worked ? DEFT_UCX_OK : DEFT_UCX_AGAIN;
}

// The worker's end is the end of its queue pairs and sockets, whatever the endpoint's close has
// left behind.
void Channel::end(bool orderly) {
    if (worker_ == nullptr) {
        return;
    }
    if (endpoint_ != nullptr) {
        ucp_request_param_t param{};
        param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = orderly && !failed_ && open_ == 0 ? 0U : unsigned{UCP_EP_CLOSE_FLAG_FORCE};
        const ucs_status_ptr_t request =
            ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
        if (UCS_PTR_IS_PTR(request)) {
            progress_until(worker_, kCloseLimit,
                           [&] { return ucp_request_check_status(request) != UCS_INPROGRESS; });
            ucp_request_free(request);
        }
        progress_until(worker_, kIdleLimit, [&] { return open_ == 0; });
    }
    for (Incoming& in : in_) {
        if (in.offer != nullptr) {
            ucp_am_data_release(worker_, std::exchange(in.offer, nullptr));
        }
    }
    if (address_ != nullptr) {
        ucp_worker_release_address(worker_, std::exchange(address_, nullptr));
    }
    ucp_worker_destroy(std::exchange(worker_, nullptr));
    for (Outgoing& out : out_) {  // which never came back
        let_go(out.key);
    }
    fail("the channel", "it has ended");
}

}  // namespace deft::ucx
