// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/full_size_trial.h"

#include <linux/tcp.h>  // tcp_info of today, which glibc's lags behind
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "plugin/tcp/reach.h"

namespace deft::net {
namespace {

// The kernel has sent the packet four times by then. If it tries smaller ones of its own accord
// (net.ipv4.tcp_mtu_probing), it begins later.
constexpr Nanos kLimit = 2 * kSecond;
constexpr std::size_t kLongest = 64 * 1024;

bool info_of(int fd, tcp_info& info) {
    socklen_t length = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
}

}  // namespace

FullSizeTrial::FullSizeTrial(std::shared_ptr<const Device> device, Route route,
                             const wire::Hello& hello)
    : device_(std::move(device)),
      route_(std::move(route)),
      hello_(hello),
      congestion_("system", device_->links[route_.link].index) {
    hello_.flags = wire::kFlagAsk;
}

Dialer::Trial FullSizeTrial::over(Dialer::Trial result) {
    fd_.reset();
    return result;
}

void FullSizeTrial::begin(std::size_t candidate, Nanos now) {
    const auto& [own, peer] = route_.candidates[candidate];
    std::string problem;
    int error = 0;
    fd_ = begin_connect(
        device_->links[route_.link], own, peer.address, peer.port,
        route_.local || device_->own_address(peer.address) || Reach::astray(own, peer.address),
        SocketTuning{}, congestion_, problem, error);
    began_ = now;
    sent_ = 0;
}

// The question, filled up to one packet: the peer reads the question, and its kernel confirms all.
bool FullSizeTrial::send_packet() {
    tcp_info info{};
    if (!info_of(fd_.get(), info) || info.tcpi_snd_mss == 0) {
        return false;
    }
    acked_before_ = info.tcpi_bytes_acked;
    std::vector<std::byte> packet(
        std::clamp<std::size_t>(info.tcpi_snd_mss, wire::kHelloBytes, kLongest));
    wire::encode(hello_, std::span(packet).first<wire::kHelloBytes>());
    const ssize_t sent = send(fd_.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    sent_ = sent > 0 ? static_cast<std::uint64_t>(sent) : 0;
    return sent_ == packet.size();
}

Dialer::Trial FullSizeTrial::poll(std::size_t candidate, Nanos now) {
    if (!fd_) {
        begin(candidate, now);
    }
    if (!fd_ || now - began_ > kLimit) {
        return over(Dialer::Trial::Swallowed);
    }
    if (sent_ == 0) {
        pollfd wait{fd_.get(), POLLOUT, 0};
        if (::poll(&wait, 1, 0) <= 0) {
            return Dialer::Trial::Pending;
        }
        int error = 0;
        socklen_t length = sizeof(error);
        (void)getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        return error != 0 || !send_packet() ? over(Dialer::Trial::Swallowed)
                                            : Dialer::Trial::Pending;
    }
    tcp_info info{};
    if (!info_of(fd_.get(), info)) {
        return over(Dialer::Trial::Swallowed);
    }
    if (info.tcpi_bytes_acked - acked_before_ >= sent_) {
        return over(Dialer::Trial::Passed);
    }
    // The connection is over, and nobody has confirmed the packet.
    pollfd ended{fd_.get(), 0, 0};
    const bool open = ::poll(&ended, 1, 0) == 0;
    return open ? Dialer::Trial::Pending : over(Dialer::Trial::Swallowed);
}

}  // namespace deft::net
