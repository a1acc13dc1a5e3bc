// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/handshake.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "plugin/core/blocking_calls.h"
#include "plugin/verbs/flusher.h"

namespace deft::net {
namespace {

// As earlier builds had it, without a vendor's extensions.
constexpr std::size_t kEarlierAddressBytes = 32;

bool would_block() {
    return errno == EAGAIN || errno == EINTR;
}

}  // namespace

struct VerbsHandshake::Made {
    std::shared_ptr<VerbsQueuePair> pair;
    std::unique_ptr<VerbsPath> path;
    std::string problem;
    std::atomic<bool> done{false};
};

VerbsHandshake::VerbsHandshake(std::shared_ptr<VerbsDomain> domain,
                               const VerbsQueuePair::Options& options, PathRole role,
                               UniqueFd socket, bool flushes)
    : role_(role), socket_(std::move(socket)), made_(std::make_shared<Made>()) {
    VerbsQueuePair::Options wanted = options;
    VerbsPath::size(wanted);
    // Milliseconds, of which a progress thread of NCCL's has none.
    const std::string device = domain->context().device();
    const bool begun = calls_that_connect(device).run(
        [made = made_, domain = std::move(domain), wanted, role, flushes]() mutable {
            made->pair = VerbsQueuePair::make(domain, wanted, made->problem);
            if (made->pair != nullptr) {
                made->path = VerbsPath::make(made->pair, role, made->problem);
            }
            if (made->path != nullptr && flushes) {
                made->path->flush_by(VerbsFlusher::make(std::move(domain), wanted));
            }
            made->done.store(true, std::memory_order_release);
        });
    if (!begun) {
        fail("no thread to make a queue pair on");
    }
}

// Whoever waits for it gives it up after a time, and then only this object knows why.
VerbsHandshake::~VerbsHandshake() {
    if (stage_ == Stage::Telling && in_done_ == kEarlierAddressBytes) {
        DEFT_WARN_ONCE(
            "RDMA: the peer's build tells %zu bytes of a queue pair where this one tells %zu, so "
            "TCP carries what RDMA could; install one build of deft on every host",
            in_done_, in_.size());
    }
}

VerbsHandshake::Result VerbsHandshake::poll(std::unique_ptr<Path>& path) {
    switch (stage_) {
        case Stage::Making:
            return take_made();
        case Stage::Telling:
            return tell();
        case Stage::Connecting:
            return wait_for_states();
        case Stage::Greeting:
            return greet(path);
        case Stage::Over:
            break;
    }
    return Result::Failed;
}

VerbsHandshake::Result VerbsHandshake::fail(const std::string& why) {
    stage_ = Stage::Over;
    failure_ = why;
    path_.reset();
    return Result::Failed;
}

VerbsHandshake::Result VerbsHandshake::lost(const char* call) {
    return fail(std::string(call) + " the address of a queue pair: " + std::strerror(errno));
}

VerbsHandshake::Result VerbsHandshake::take_made() {
    if (!made_->done.load(std::memory_order_acquire)) {
        return Result::Pending;
    }
    path_ = std::move(made_->path);
    pair_ = made_->pair;
    if (path_ == nullptr) {
        return fail(made_->problem);
    }
    encode(pair_->own(), out_);
    stage_ = Stage::Telling;
    return Result::Pending;
}

// False: it has failed. Connects the queue pair once the peer's address is here.
bool VerbsHandshake::hear() {
    if (in_done_ < in_.size()) {
        const ssize_t got =
            ::recv(socket_.get(), in_.data() + in_done_, in_.size() - in_done_, MSG_DONTWAIT);
        if (got == 0) {
            fail("the peer has closed the connection and told of no queue pair");
            return false;
        }
        if (got < 0 && !would_block()) {
            lost("receive");
            return false;
        }
        in_done_ += got > 0 ? static_cast<std::size_t>(got) : 0;
    }
    if (in_done_ < in_.size() || connecting_) {
        return true;
    }
    VerbsAddress peer;
    if (!decode(in_, peer)) {
        fail("the peer has told of a queue pair that cannot be");
        return false;
    }
    connecting_ = true;
    const bool answers_later = role_ == PathRole::Receiver && pair_->agrees(peer);
    pair_->connect(peer);
    if (answers_later) {
        stage_ = Stage::Connecting;
    }
    return true;
}

// The receiver hears first. Where both cards have a vendor's extensions, what it tells is what was
// agreed, once its queue pair is connected.
VerbsHandshake::Result VerbsHandshake::tell() {
    if (!hear()) {
        return Result::Failed;
    }
    if (stage_ != Stage::Telling || (role_ == PathRole::Receiver && !connecting_)) {
        return Result::Pending;
    }
    if (out_done_ < out_.size()) {
        const ssize_t sent = ::send(socket_.get(), out_.data() + out_done_, out_.size() - out_done_,
                                    MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && !would_block()) {
            return lost("send");
        }
        out_done_ += sent > 0 ? static_cast<std::size_t>(sent) : 0;
    }
    if (out_done_ == out_.size() && connecting_) {
        stage_ = Stage::Connecting;
    }
    return Result::Pending;
}

// A peer that has ended says so here alone: its queue pair is silent.
bool VerbsHandshake::peer_gone() const {
    char nothing = 0;
    const ssize_t got = ::recv(socket_.get(), &nothing, 1, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && !would_block());
}

VerbsHandshake::Result VerbsHandshake::wait_for_states() {
    switch (pair_->state()) {
        case VerbsQueuePair::State::Connecting:
            return Result::Pending;
        case VerbsQueuePair::State::Ready:
            if (out_done_ == 0) {
                encode(pair_->own(), out_);
            }
            stage_ = out_done_ == out_.size() ? Stage::Greeting : Stage::Telling;
            return Result::Pending;
        default:
            return fail(pair_->why());
    }
}

VerbsHandshake::Result VerbsHandshake::greet(std::unique_ptr<Path>& path) {
    if (role_ == PathRole::Sender && !greeted_) {
        greeted_ = path_->greet() == Post::Ok;
    }
    path_->await_greeting();
    if (path_->loss() != Path::Loss::None) {
        return fail(path_->failure());
    }
    if (!path_->greeted()) {
        return peer_gone() ? fail("the peer has gone before a word came over the queue pair")
                           : Result::Pending;
    }
    path_->watch(std::move(socket_));
    path = std::move(path_);
    stage_ = Stage::Over;
    return Result::Connected;
}

}  // namespace deft::net
