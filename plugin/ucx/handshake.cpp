// SPDX-License-Identifier: Apache-2.0
#include "plugin/ucx/handshake.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "plugin/core/blocking_calls.h"

namespace deft::net {
namespace {

// In front of an address: magic, its length.
constexpr std::uint32_t kMagic = 0xDEF70C01;
constexpr std::size_t kPrefixBytes = 8;

bool would_block() {
    return errno == EAGAIN || errno == EINTR;
}

// A length that a peer may have told; 0: it has not.
std::size_t told_length(const std::vector<std::byte>& in) {
    ByteReader reader(std::span<const std::byte>(in).first(kPrefixBytes));
    const bool ours = reader.get<std::uint32_t>() == kMagic;
    const auto length = reader.get<std::uint32_t>();
    return ours && length <= DEFT_UCX_ADDRESS_BYTES ? length : 0;
}

}  // namespace

struct UcxHandshake::Made {
    std::shared_ptr<UcxChannel> channel;
    std::string problem;
    std::atomic<bool> done{false};  // the call that is under way
};

UcxHandshake::UcxHandshake(std::shared_ptr<UcxDevice> device, PathRole role, UniqueFd socket,
                           const std::string& description)
    : role_(role),
      description_(description),
      socket_(std::move(socket)),
      made_(std::make_shared<Made>()),
      in_(kPrefixBytes) {
    calls_ = &calls_that_connect(device->name());
    const bool begun = calls_->run([made = made_, device = std::move(device)] {
        made->channel = UcxChannel::make(device, made->problem);
        made->done.store(true, std::memory_order_release);
    });
    if (!begun) {
        fail("no thread to make a UCX worker on");
    }
}

// Behind the call that may be under way.
UcxHandshake::~UcxHandshake() {
    if (stage_ != Stage::Over) {
        calls_->run([made = std::move(made_), path = std::shared_ptr(std::move(path_))] {
            if (made->channel != nullptr) {
                made->channel->end();
            }
        });
    }
}

UcxHandshake::Result UcxHandshake::poll(std::unique_ptr<Path>& path) {
    switch (stage_) {
        case Stage::Making:
            return take_made();
        case Stage::Telling:
            return tell();
        case Stage::Connecting:
            return wait_for_connect();
        case Stage::Greeting:
            return greet(path);
        case Stage::Over:
            break;
    }
    return Result::Failed;
}

UcxHandshake::Result UcxHandshake::fail(const std::string& why) {
    failure_ = why;
    return Result::Failed;
}

UcxHandshake::Result UcxHandshake::take_made() {
    if (!made_->done.load(std::memory_order_acquire)) {
        return Result::Pending;
    }
    if (made_->channel == nullptr) {
        return fail(made_->problem);
    }
    const void* address = nullptr;
    const std::size_t bytes = made_->channel->module().address(made_->channel->get(), &address);
    out_.resize(kPrefixBytes + bytes);
    ByteWriter writer(out_);
    writer.put(kMagic);
    writer.put(static_cast<std::uint32_t>(bytes));
    writer.put_bytes(address, bytes);
    stage_ = Stage::Telling;
    return Result::Pending;
}

// False: it has failed.
bool UcxHandshake::say() {
    if (out_done_ == out_.size()) {
        return true;
    }
    const ssize_t sent = ::send(socket_.get(), out_.data() + out_done_, out_.size() - out_done_,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && !would_block()) {
        fail(std::string("send the address of a UCX worker: ") + std::strerror(errno));
        return false;
    }
    out_done_ += sent > 0 ? static_cast<std::size_t>(sent) : 0;
    return true;
}

// False: it has failed.
bool UcxHandshake::hear() {
    while (in_done_ < in_.size()) {
        const ssize_t got =
            ::recv(socket_.get(), in_.data() + in_done_, in_.size() - in_done_, MSG_DONTWAIT);
        if (got == 0) {
            fail("the peer has closed the connection and told of no UCX worker");
            return false;
        }
        if (got < 0) {
            if (!would_block()) {
                fail(std::string("receive the address of a UCX worker: ") + std::strerror(errno));
                return false;
            }
            return true;
        }
        in_done_ += static_cast<std::size_t>(got);
        if (in_done_ == kPrefixBytes && in_.size() == kPrefixBytes) {
            const std::size_t length = told_length(in_);
            if (length == 0) {
                fail("the peer has told of a UCX worker that cannot be");
                return false;
            }
            in_.resize(kPrefixBytes + length);
        }
    }
    return true;
}

UcxHandshake::Result UcxHandshake::tell() {
    if (!say() || !hear()) {
        return Result::Failed;
    }
    if (out_done_ < out_.size() || in_done_ <= kPrefixBytes || in_done_ < in_.size()) {
        return Result::Pending;
    }
    path_ = std::make_unique<UcxPath>(made_->channel, role_, description_);
    if (role_ == PathRole::Sender) {
        return connect();
    }
    stage_ = Stage::Greeting;
    return Result::Pending;
}

// Nobody else uses the channel until that is done.
UcxHandshake::Result UcxHandshake::connect() {
    made_->done.store(false, std::memory_order_relaxed);
    // UCX takes an address without its length: zeros behind it end what is read of a wrong one.
    std::vector<std::byte> address(in_.begin() + kPrefixBytes, in_.end());
    const std::size_t bytes = address.size();
    address.resize(2 * std::size_t{DEFT_UCX_ADDRESS_BYTES});
    const bool begun = calls_->run([made = made_, address = std::move(address), bytes] {
        const UcxChannel& channel = *made->channel;
        if (channel.module().connect(channel.get(), address.data(), bytes) != DEFT_UCX_OK) {
            const char* const why = channel.module().failure(channel.get());
            made->problem = why == nullptr ? "it cannot be connected" : why;
        }
        made->done.store(true, std::memory_order_release);
    });
    stage_ = Stage::Connecting;
    return begun ? Result::Pending : fail("no thread to connect a UCX worker on");
}

UcxHandshake::Result UcxHandshake::wait_for_connect() {
    if (!made_->done.load(std::memory_order_acquire)) {
        return Result::Pending;
    }
    if (!made_->problem.empty()) {
        return fail(made_->problem);
    }
    connected_ = true;
    stage_ = Stage::Greeting;
    return Result::Pending;
}

UcxHandshake::Result UcxHandshake::greet(std::unique_ptr<Path>& path) {
    if (role_ == PathRole::Sender && !greeted_) {
        greeted_ = path_->greet() == Post::Ok;
    }
    path_->await_greeting();
    if (path_->loss() != Path::Loss::None) {
        return fail(path_->failure());
    }
    if (path_->greeted() && !connected_) {
        return connect();
    }
    if (!path_->greeted() || !path_->answered()) {
        return Result::Pending;
    }
    path_->watch(std::move(socket_));
    path = std::move(path_);
    stage_ = Stage::Over;
    return Result::Connected;
}

}  // namespace deft::net
