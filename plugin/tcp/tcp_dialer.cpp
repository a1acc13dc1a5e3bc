// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/tcp_dialer.h"

#include <linux/tcp.h>  // tcp_info of today, which glibc's lags behind
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "plugin/tcp/carrier_watch.h"
#include "plugin/tcp/full_size_trial.h"
#include "plugin/tcp/probed_rates.h"
#include "plugin/tcp/reach.h"
#include "plugin/tcp/tcp_path.h"

namespace deft::net {
namespace {

// A lost request is repeated after a second. A pair that is dead is found out within the time that
// a connection waits for its other paths.
constexpr Nanos kConnectLimit = 1200 * kMillisecond;
// A listener that does not know us would have closed by now.
constexpr Nanos kReachedAfter = 300 * kMillisecond;

// Any link of IPv6 carries it, with both headers and TCP's options (RFC 8200: 1280 bytes).
constexpr int kSmallSegment = 1200;

// The refusal came by ICMP: a firewall's REJECT. A connection that stands survives that; and the
// peer's host, where nobody listens, answers with a segment of TCP's. Where the kernel counts
// neither way, it is taken for the host's.
bool firewalls(int fd) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_segs_out != 0 &&
           info.tcpi_segs_in == 0;
}

const Interface& link_of(const Device& device, const Route& route) {
    return device.links[route.link];
}

}  // namespace

TcpDialer::TcpDialer(std::shared_ptr<const Device> device, Route route, const wire::Hello& hello,
                     const Options& options)
    : device_(std::move(device)),
      route_(std::move(route)),
      hello_(hello),
      dead_after_(options.dead_after),
      congestion_(options.congestion, link_of(*device_, route_).index),
      pages_(options.pages),
      home_(options.home),
      pass_over_(options.pass_over),
      gives_way_to_(options.gives_way_to),
      reserve_(options.reserve),
      counters_(LinkStats::process().link(link_of(*device_, route_).name.c_str(), "tcp")) {
    const Interface& link = link_of(*device_, route_);
    if (hello_.kind == wire::Hello::kTcp) {  // else whoever made the hello has said it
        hello_.speed_mbps =
            static_cast<std::uint32_t>(std::clamp<std::int64_t>(link.speed_mbps, 0, 0xffffffff));
        std::strncpy(hello_.link, link.name.c_str(), sizeof(hello_.link) - 1);
    }
    description_ = link.name;
}

TcpDialer::~TcpDialer() = default;

bool known_dead(const Route& route, const Interface& link) {
    return CarrierWatch::down(link.name) ||
           std::all_of(route.candidates.begin(), route.candidates.end(), [](const auto& pair) {
               return Reach::known_dead(pair.first, pair.second.address);
           });
}

// False if there is none worth waiting for.
bool TcpDialer::choose_candidate() {
    // The candidate that is best, or worked last, has every second turn; the others share the rest.
    candidate_ = preferred_;
    if (attempts_ % 2 == 1 && route_.candidates.size() > 1) {
        const std::size_t other = attempts_ / 2 % (route_.candidates.size() - 1);
        candidate_ = other + (other >= preferred_ ? 1 : 0);
    }
    ++attempts_;
    if (!pass_over_) {
        return true;
    }
    pass_over_ = false;
    if (CarrierWatch::down(link_of(*device_, route_).name)) {
        failure_ = "its link has no carrier; tried again in the background";
        return false;
    }
    failure_ = "found unreachable before; tried again in the background";
    for (std::size_t i = 0; i < route_.candidates.size(); ++i) {
        const auto& [own, peer] = route_.candidates[i];
        if (!Reach::known_dead(own, peer.address)) {
            candidate_ = i;
            return true;
        }
    }
    return false;
}

// Where another link is in the same network, answers may come in through that one. Then two in
// three attempts do as NCCL's Socket does, which keeps to no link.
bool TcpDialer::leaves_link(const Address& own, const Address& peer) const {
    const std::size_t turn = silent_ + (Reach::astray(own, peer) ? 1 : 0);
    return turn % 3 != 0 && !kept_ && device_->network_shared(route_.link) &&
           !CarrierWatch::down(link_of(*device_, route_).name);
}

void TcpDialer::start(std::uint32_t incarnation, Nanos now) {
    cancel();
    const bool worth_it = choose_candidate();
    const auto& [own, peer] = route_.candidates[candidate_];
    hello_.incarnation = incarnation;
    hello_.remote_link = peer.link;
    hello_.home = home_ == nullptr ? wire::Endpoint{} : home_->place(route_.link, own);
    wire::encode(hello_, out_);
    out_done_ = in_done_ = 0;
    began_ = now;
    description_ = link_of(*device_, route_).name + " " + own.text() + " -> " + peer.address.text();
    SocketTuning tuning;
    tuning.dead_after = dead_after_;
    tuning.pacing_bytes_per_second =
        link_of(*device_, route_).pacing_bytes_per_second / route_.streams;
    tuning.segment = small_ ? kSmallSegment : 0;
    begin_error_ = 0;
    stage_ = Stage::Connecting;
    if (!worth_it) {
        return;
    }
    failure_ = "no answer to the connection request";
    const bool local = route_.local || device_->own_address(peer.address);
    anyhow_ = !local && leaves_link(own, peer.address);
    fd_ = begin_connect(link_of(*device_, route_), own, peer.address, peer.port, local || anyhow_,
                        tuning, congestion_, failure_, begin_error_);
}

bool TcpDialer::reached(Nanos now) const {
    return (stage_ == Stage::Greeting || stage_ == Stage::Waiting) &&
           now - began_ > std::min(kReachedAfter, dead_after_ / 2);
}

void TcpDialer::cancel() {
    fd_.reset();
    stage_ = Stage::Idle;
}

Dialer::Trial TcpDialer::try_full_size(Nanos now) {
    if (trial_ == nullptr) {
        trial_ = std::make_unique<FullSizeTrial>(device_, route_, hello_);
    }
    const Trial result = trial_->poll(preferred_, now);
    if (result != Trial::Pending) {
        trial_.reset();
    }
    return result;
}

Carrier TcpDialer::carrier() const {
    return CarrierWatch::of(link_of(*device_, route_).name);
}

Dialer::Result TcpDialer::fail(Result result, std::string text) {
    failure_ = std::move(text);
    cancel();
    return result;
}

Dialer::Result TcpDialer::poll(Nanos now, Connected& connected) {
    Result result = Result::Pending;
    if (home_ != nullptr) {
        home_->poll(now);  // who has lost this connection may be asking for it
    }
    if (stage_ == Stage::Connecting) {
        result = poll_connect(now);
    }
    if (result == Result::Pending && stage_ == Stage::Greeting) {
        result = poll_greeting();
    }
    if (result == Result::Pending && stage_ == Stage::Waiting) {
        result = poll_welcome(connected);
    }
    if (result == Result::Pending && stage_ == Stage::Connecting && now - began_ > kConnectLimit) {
        const auto& [own, peer] = route_.candidates[candidate_];
        Reach::dead(own, peer.address);
        ++silent_;
        return fail(Result::Silent, failure_);
    }
    return result;
}

// Of an address that has never led to the peer it says nothing about the peer.
Dialer::Result TcpDialer::refused_or_failed(int error) const {
    return error == ECONNREFUSED && candidate_ == preferred_ ? Result::Refused : Result::Failed;
}

Dialer::Result TcpDialer::poll_connect(Nanos now) {
    if (!fd_) {
        return fail(begin_error_ == 0 ? Result::Silent : refused_or_failed(begin_error_), failure_);
    }
    pollfd wait{fd_.get(), POLLOUT, 0};
    if (::poll(&wait, 1, 0) <= 0) {
        return Result::Pending;
    }
    int error = 0;
    socklen_t length = sizeof(error);
    (void)getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == ECONNREFUSED && firewalls(fd_.get())) {
        return fail(Result::Failed, "connect: refused by ICMP, as firewalls do, not by the host");
    }
    if (error != 0) {
        return fail(refused_or_failed(error), std::string("connect: ") + std::strerror(error));
    }
    losses_ = congestion_.connected(fd_.get());
    round_trip_ = now - began_;
    const auto& [own, peer] = route_.candidates[candidate_];
    Reach::alive(own, peer.address);
    kept_ = kept_ || !anyhow_;
    if (anyhow_) {
        Reach::went_astray(own, peer.address);
        DEFT_WARN_ONCE(
            "link %s: %s answers a connection that keeps to no link, and none that keeps to this "
            "one, so it may share another link of the same network; if this one is well, set "
            "net.ipv4.conf.all.arp_ignore=1 and arp_announce=2 on all hosts",
            link_of(*device_, route_).name.c_str(), peer.address.text().c_str());
    }
    stage_ = Stage::Greeting;
    return Result::Pending;
}

Dialer::Result TcpDialer::poll_greeting() {
    const ssize_t sent = send(fd_.get(), out_.data() + out_done_, out_.size() - out_done_,
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return Result::Pending;
        }
        return fail(Result::Failed, std::string("hello: ") + std::strerror(errno));
    }
    out_done_ += static_cast<std::size_t>(sent);
    if (out_done_ == out_.size()) {
        failure_ = "connected, but the peer sent no welcome";
        stage_ = Stage::Waiting;
    }
    return Result::Pending;
}

Dialer::Result TcpDialer::poll_welcome(Connected& connected) {
    const ssize_t got = recv(fd_.get(), in_.data() + in_done_, in_.size() - in_done_, MSG_DONTWAIT);
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return Result::Pending;
        }
        return fail(Result::Failed, std::string("welcome: ") + std::strerror(errno));
    }
    if (got == 0) {
        return fail(Result::Failed, "the peer closed the connection instead of a welcome");
    }
    in_done_ += static_cast<std::size_t>(got);
    if (in_done_ < in_.size()) {
        return Result::Pending;
    }
    wire::Welcome welcome;
    const Result result = read_welcome(welcome);
    if (result == Result::Connected) {
        adopt(welcome, connected);
    }
    return result;
}

Dialer::Result TcpDialer::read_welcome(wire::Welcome& welcome) {
    switch (wire::decode(in_, welcome)) {
        case wire::Decoded::Ok:
            break;
        case wire::Decoded::WrongVersion:
            return fail(Result::Fatal, "the peer's deft speaks protocol version " +
                                           std::to_string(welcome.version) + ", this one " +
                                           std::to_string(wire::kOldestVersion) + " to " +
                                           std::to_string(wire::kVersion) +
                                           ": install the same release on all hosts");
        case wire::Decoded::NotDeft:
        case wire::Decoded::Malformed:
        case wire::Decoded::Damaged:
            return fail(Result::Failed, "the peer's welcome makes no sense");
    }
    if (welcome.answer == wire::Answer::Closed) {
        return fail(Result::Closed, "the peer has closed this connection");
    }
    if (welcome.answer != wire::Answer::Accepted) {
        return fail(Result::Fatal,
                    "the peer refused the connection: its listener already serves another one");
    }
    return Result::Connected;
}

void TcpDialer::adopt(const wire::Welcome& welcome, Connected& connected) {
    endpoints_ = welcome.endpoints;
    ports_ = welcome.ports;
    connected.completed = welcome.completed;
    connected.posted = welcome.posted;
    connected.round_trip = round_trip_;
    connected.speed_mbps = hello_.speed_mbps;
    if (welcome.speed_mbps != 0 &&
        (connected.speed_mbps == 0 || welcome.speed_mbps < connected.speed_mbps)) {
        connected.speed_mbps = welcome.speed_mbps;
    }
    stage_ = Stage::Idle;
    preferred_ = candidate_;
    attempts_ = 0;
    if (hello_.kind != wire::Hello::kTcp) {
        return;
    }
    const auto& [own, peer] = route_.candidates[candidate_];
    connected.probed_rate = ProbedRates::process().rate(own, peer.address);
    TcpPath::Options options;
    options.checked = (hello_.flags & wire::kFlagChecked) != 0;
    options.pages = pages_;
    options.losses = losses_;
    connected.path =
        std::make_unique<TcpPath>(std::move(fd_), TcpPath::Role::Sender, description_, options);
}

}  // namespace deft::net
