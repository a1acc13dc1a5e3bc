// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <numeric>

#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kMaxLetter = 64u << 20;  // larger than any all-gather blob of 65536 ranks

struct MeshHello {
    uint64_t magic;
    int32_t rank;
    int32_t reserved;
};

}  // namespace

Control::Control(int rank, int nranks, uint64_t magic, const std::atomic<bool>* abort)
    : rank_(rank),
      nranks_(nranks),
      magic_(magic),
      abort_(abort),
      lost_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(nranks))),
      wake_(eventfd(0, EFD_CLOEXEC)) {
    for (int i = 0; i < nranks; ++i) {
        peers_.push_back(std::make_unique<Peer>());
    }
}

Control::~Control() {
    stop();
}

void Control::meet(UniqueFd listener, const std::vector<Address>& addresses,
                   const Patience& patience) {
    for (int peer = 0; peer < rank_; ++peer) {
        UniqueFd fd = connect_to(addresses[peer], patience, 2s);
        const MeshHello hello{magic_, rank_, 0};
        if (!fd || !send_all(fd.get(), &hello, sizeof hello, patience)) {
            throw Error(ncclRemoteError,
                        format("rank %d: cannot reach rank %d at %s: %s", rank_, peer,
                               to_string(addresses[peer]).c_str(), strerror(errno)));
        }
        peers_[peer]->fd = std::move(fd);
    }
    for (int left = nranks_ - 1 - rank_; left > 0;) {
        UniqueFd fd = accept_on(listener.get(), patience);
        if (!fd) {
            throw Error(ncclRemoteError, format("rank %d: %d higher ranks did not connect: %s",
                                                rank_, left, strerror(errno)));
        }
        MeshHello hello{};
        if (receive_all(fd.get(), &hello, sizeof hello, {Clock::now() + 20s, abort_}) &&
            hello.magic == magic_ && hello.rank > rank_ && hello.rank < nranks_ &&
            !peers_[hello.rank]->fd) {
            peers_[hello.rank]->fd = std::move(fd);
            --left;
        }
    }
}

void Control::start(Handlers handlers) {
    handlers_ = std::move(handlers);
    thread_ = std::thread([this] { run(); });
    name_thread(thread_, "NCCL UDS Service");
}

void Control::stop() {
    if (thread_.joinable()) {
        stop_.store(true);
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
        thread_.join();
    }
    for (auto& peer : peers_) {
        std::lock_guard lock(peer->sending);
        peer->fd.reset();
    }
}

void Control::run() {
    std::vector<pollfd> waiting;
    std::vector<int> who;
    while (!stop_.load()) {
        waiting.assign(1, {wake_.get(), POLLIN, 0});
        who.assign(1, -1);
        for (int peer = 0; peer < nranks_; ++peer) {
            if (peers_[peer]->fd && !lost_[peer].load()) {
                waiting.push_back({peers_[peer]->fd.get(), POLLIN, 0});
                who.push_back(peer);
            }
        }
        if (poll(waiting.data(), waiting.size(), -1) < 0) {
            continue;
        }
        for (size_t i = 1; i < waiting.size() && !stop_.load(); ++i) {
            if (waiting[i].revents != 0 && !read_from(who[i])) {
                lost_[who[i]].store(true);
                arrivals_.ring();
                handlers_.lost(who[i], peers_[who[i]]->said_bye);
            }
        }
    }
}

bool Control::read_from(int index) {
    Peer& peer = *peers_[index];
    char buffer[64 << 10];
    for (;;) {
        const ssize_t n = recv(peer.fd.get(), buffer, sizeof buffer, 0);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno == EAGAIN;
        }
        if (n == 0) {
            return false;
        }
        peer.incoming.append(buffer, static_cast<size_t>(n));
        size_t at = 0;
        Frame frame;
        while (peer.incoming.size() - at >= sizeof frame) {
            std::memcpy(&frame, peer.incoming.data() + at, sizeof frame);
            if (frame.bytes > kMaxLetter) {
                return false;
            }
            if (peer.incoming.size() - at - sizeof frame < frame.bytes) {
                break;
            }
            deliver(index, frame, peer.incoming.substr(at + sizeof frame, frame.bytes));
            at += sizeof frame + frame.bytes;
        }
        peer.incoming.erase(0, at);
    }
}

void Control::deliver(int peer, const Frame& frame, std::string payload) {
    const auto type = static_cast<Letter>(frame.type);
    if (type == Letter::kGather || type == Letter::kHandle) {
        {
            std::lock_guard lock(mail_mutex_);
            mail_[{type, peer, frame.key}].push_back(std::move(payload));
        }
        arrivals_.ring();
        return;
    }
    if (type == Letter::kBye) {
        peers_[peer]->said_bye = true;
    }
    handlers_.letter(peer, type, frame.key, std::move(payload));
}

void Control::send(int index, Letter type, uint64_t key, const std::string& payload) {
    const Frame frame{static_cast<uint32_t>(type), static_cast<uint32_t>(payload.size()), key};
    std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
    bytes += payload;
    Peer& peer = *peers_[index];
    std::lock_guard lock(peer.sending);
    // A peer that is gone is noticed by the reading side, with a better message than EPIPE.
    if (peer.fd) {
        send_all(peer.fd.get(), bytes.data(), bytes.size(), {Clock::now() + 10s, abort_});
    }
}

void Control::send_to_all(Letter type, uint64_t key, const std::string& payload) {
    for (int peer = 0; peer < nranks_; ++peer) {
        if (peer != rank_) {
            send(peer, type, key, payload);
        }
    }
}

std::optional<std::string> Control::take(Letter type, int peer, uint64_t key) {
    std::lock_guard lock(mail_mutex_);
    const auto found = mail_.find({type, peer, key});
    if (found == mail_.end()) {
        return std::nullopt;
    }
    std::string payload = std::move(found->second.front());
    found->second.erase(found->second.begin());
    if (found->second.empty()) {
        mail_.erase(found);
    }
    return payload;
}

std::optional<std::string> Control::take_handle(int peer, uint64_t key) {
    return take(Letter::kHandle, peer, key);
}

std::vector<std::string> Control::all_gather(uint64_t key, const std::string& blob,
                                             const Patience& patience, const char* what) {
    std::vector<int> everybody(static_cast<size_t>(nranks_));
    std::iota(everybody.begin(), everybody.end(), 0);
    return all_gather(key, blob, everybody, patience, what);
}

std::vector<std::string> Control::all_gather(uint64_t key, const std::string& blob,
                                             const std::vector<int>& who, const Patience& patience,
                                             const char* what) {
    std::vector<std::optional<std::string>> parts(who.size());
    for (size_t i = 0; i < who.size(); ++i) {
        if (who[i] == rank_) {
            parts[i] = blob;
        } else {
            send(who[i], Letter::kGather, key, blob);
        }
    }
    for (;;) {
        const uint64_t seen = arrivals_.seen();
        std::string missing;
        bool gone = false;
        for (size_t i = 0; i < who.size(); ++i) {
            if (!parts[i]) {
                // First ask whether the rank is lost: its last letter may have come before that.
                const bool lost_now = lost(who[i]);
                parts[i] = take(Letter::kGather, who[i], key);
                if (!parts[i]) {
                    missing += (missing.empty() ? "" : ", ") + std::to_string(who[i]);
                    gone |= lost_now;
                }
            }
        }
        if (missing.empty()) {
            break;
        }
        if (gone || patience.cancelled() || patience.over()) {
            const char* why = patience.cancelled() ? "aborted"
                              : gone               ? "a rank is gone"
                                                   : "time is over";
            throw Error(patience.cancelled() ? ncclInternalError : ncclRemoteError,
                        format("%s: %s while waiting for rank%s %s", what, why,
                               missing.find(',') == std::string::npos ? "" : "s", missing.c_str()));
        }
        arrivals_.sleep(seen, 50ms);
    }
    std::vector<std::string> all;
    for (auto& part : parts) {
        all.push_back(std::move(*part));
    }
    return all;
}

}  // namespace softdev::nccl
