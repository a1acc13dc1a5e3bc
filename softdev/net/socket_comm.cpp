// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/socket_comm.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "deft/abi/net.h"
#include "softdev/net/logger.h"
#include "softdev/net/socket_faults.h"

namespace softdev::net {

SocketComm::SocketComm(Direction direction, std::vector<deft::UniqueFd> sockets, int threads,
                       std::string description, bool faults)
    : direction_(direction),
      faults_(faults),
      description_(std::move(description)),
      control_(std::move(sockets.front())) {
    static_assert(std::tuple_size_v<decltype(requests_)> == DEFT_NET_MAX_REQUESTS);
    sockets.erase(sockets.begin());
    if (!sockets.empty()) {
        helpers_ = std::make_unique<SocketHelpers>(direction, std::move(sockets), threads);
    }
    for (SocketRequest& request : requests_) {
        request.comm = this;
    }
}

SocketRequest* SocketComm::post(void* data, size_t bytes) {
    SocketRequest& request = requests_[tail_ % requests_.size()];
    if (request.state != SocketRequest::State::Free) {
        return nullptr;
    }
    ++tail_;
    request.state = SocketRequest::State::Queued;
    request.data = static_cast<char*>(data);
    request.posted = bytes;
    request.bytes = bytes;
    request.moved = 0;
    request.size_known = direction_ == Direction::Send;
    return &request;
}

int SocketComm::test(SocketRequest* request, int* done, int* bytes) {
    *done = 0;
    const int result = progress();
    if (request->state == SocketRequest::State::Pieces &&
        request->pieces.load(std::memory_order_acquire) == 0) {
        request->state = SocketRequest::State::Done;
    }
    if (request->state == SocketRequest::State::Done) {
        *done = 1;
        if (bytes != nullptr) {
            *bytes = static_cast<int>(std::min<uint64_t>(request->bytes, INT_MAX));
        }
        request->state = SocketRequest::State::Free;
        return DEFT_NET_SUCCESS;
    }
    return result;
}

int SocketComm::progress() {
    if (failed_ != 0) {
        return failed_;
    }
    const SocketFaults::State fault =
        faults_ ? SocketFaults::process().state() : SocketFaults::State::None;
    if (fault != SocketFaults::State::None) {
        return fault == SocketFaults::State::Held ? DEFT_NET_SUCCESS : fail(EPIPE);
    }
    if (helpers_ != nullptr) {
        if (const int error = helpers_->error(); error != 0) {
            return fail(error);
        }
    }
    return direction_ == Direction::Send ? progress_send() : progress_receive();
}

void SocketComm::finish_control(SocketRequest& request) {
    if (goes_inline(request.bytes)) {
        request.state = SocketRequest::State::Done;
    } else {
        request.state = SocketRequest::State::Pieces;
        helpers_->submit(request.data, request.bytes, &request.pieces);
    }
    ++next_;
}

int SocketComm::progress_send() {
    SocketFaults& faults = SocketFaults::process();
    while (next_ < tail_) {
        const size_t most = faults_ ? faults.allowance() : SIZE_MAX;
        if (most == 0 || (faults_ && faults.state() != SocketFaults::State::None)) {
            return DEFT_NET_SUCCESS;  // as if the socket were full
        }
        SocketRequest& request = requests_[next_ % requests_.size()];
        const size_t payload = goes_inline(request.bytes) ? request.bytes : 0;
        iovec parts[2];
        int count = 0;
        if (request.moved < kHeaderBytes) {
            parts[count++] = {reinterpret_cast<char*>(&request.bytes) + request.moved,
                              kHeaderBytes - request.moved};
        }
        const size_t payload_moved =
            request.moved > kHeaderBytes ? request.moved - kHeaderBytes : 0;
        if (payload > payload_moved) {
            parts[count++] = {request.data + payload_moved,
                              std::min(payload - payload_moved, most)};
        }
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = count;
        const ssize_t sent = sendmsg(control_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno == EAGAIN || errno == EWOULDBLOCK ? DEFT_NET_SUCCESS : fail(errno);
        }
        if (faults_) {
            faults.sent(static_cast<size_t>(sent));
        }
        request.moved += sent;
        if (request.moved == kHeaderBytes + payload) {
            finish_control(request);
        }
    }
    return DEFT_NET_SUCCESS;
}

size_t SocketComm::take_staged(char* to, size_t at_most) {
    const size_t bytes = std::min(at_most, staged_end_ - staged_begin_);
    if (bytes > 0) {
        std::memcpy(to, staged_ + staged_begin_, bytes);
    }
    staged_begin_ += bytes;
    if (staged_begin_ == staged_end_) {
        staged_begin_ = staged_end_ = 0;
    }
    return bytes;
}

int SocketComm::progress_receive() {
    while (next_ < tail_) {
        SocketRequest& request = requests_[next_ % requests_.size()];
        // First from what is staged already.
        if (!request.size_known) {
            request.moved += take_staged(reinterpret_cast<char*>(&request.bytes) + request.moved,
                                         kHeaderBytes - request.moved);
            if (request.moved == kHeaderBytes) {
                request.size_known = true;
                if (request.bytes > request.posted) {
                    SOFTNET_WARN(
                        "NET/Socket : %s: message truncated: the peer sends %llu bytes, "
                        "%zu are posted",
                        description_.c_str(), static_cast<unsigned long long>(request.bytes),
                        request.posted);
                    return failed_ = DEFT_NET_INVALID_USAGE;
                }
            }
        }
        size_t wanted = 0;
        if (request.size_known) {
            wanted =
                goes_inline(request.bytes) ? request.bytes - (request.moved - kHeaderBytes) : 0;
            const size_t staged =
                take_staged(request.data + (request.moved - kHeaderBytes), wanted);
            request.moved += staged;
            wanted -= staged;
            if (wanted == 0) {
                finish_control(request);
                continue;
            }
        }
        // Then from the socket: the rest of this message into its place, the start of the next
        // into the staging area. Nothing is staged at this point.
        iovec parts[2];
        int count = 0;
        if (wanted > 0) {
            parts[count++] = {request.data + (request.moved - kHeaderBytes), wanted};
        }
        parts[count++] = {staged_, sizeof staged_};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = count;
        const ssize_t received = recvmsg(control_.get(), &message, MSG_DONTWAIT);
        if (received < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno == EAGAIN || errno == EWOULDBLOCK ? DEFT_NET_SUCCESS : fail(errno);
        }
        if (received == 0) {
            return fail(SocketHelpers::kClosedByPeer);
        }
        const size_t here = std::min<size_t>(received, wanted);
        request.moved += here;
        staged_end_ = received - here;
        if (wanted > 0 && here == wanted) {
            finish_control(request);
        }
    }
    return DEFT_NET_SUCCESS;
}

int SocketComm::fail(int error) {
    const bool remote = error == SocketHelpers::kClosedByPeer || error == ECONNRESET ||
                        error == EPIPE || error == ETIMEDOUT;
    SOFTNET_WARN(
        "NET/Socket : %s: %s: %s", description_.c_str(),
        direction_ == Direction::Send ? "send" : "receive",
        error == SocketHelpers::kClosedByPeer ? "connection closed by the peer" : strerror(error));
    return failed_ = remote ? DEFT_NET_REMOTE_ERROR : DEFT_NET_SYSTEM_ERROR;
}

}  // namespace softdev::net
