// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "plugin/core/path.h"
#include "plugin/tcp/congestion.h"
#include "plugin/tcp/device.h"
#include "plugin/tcp/page_pipes.h"
#include "plugin/tcp/tcp_acceptor.h"
#include "plugin/tcp/tcp_socket.h"
#include "plugin/tcp/wire.h"

namespace deft::net {

// Where a path may go: one address of ours and the addresses of the peer it could reach, best
// first.
struct Route {
    std::size_t link = 0;     // ours
    std::size_t streams = 1;  // routes like this one, which share the link
    bool local = false;       // the peer is on this host: packets go over no device
    bool reserve = false;     // for the time without all others
    std::vector<std::pair<Address, wire::Endpoint>> candidates;
};

// True if the link has no carrier, or this process knows each of the route's pairs not to work.
bool known_dead(const Route& route, const Interface& link);

// The peer's addresses that are also this host's, and in `links` our own that are also the peer's,
// go: each belongs to a network inside of either host (a hypervisor's, a container engine's), or a
// NAT's. If all of the peer's are this host's, the peer is on this host, and nothing goes. `host`:
// every address of this host. True if the peer is on this host. Pure.
bool drop_doubles(const std::vector<Address>& host, std::vector<Interface>& links,
                  wire::EndpointList& endpoints);

// One route per path: every link of both sides is in use at least once where address families
// allow, and links of one network are paired first. Behind these come routes that lead over a
// reserve of either side, which is the peer's from its link `first_reserve` on (0: it has none), if
// any others lead to the peer. Pure.
std::vector<Route> plan_routes(const std::vector<Interface>& links,
                               const wire::EndpointList& endpoints, std::size_t first_reserve = 0);

// Leaves `most` routes: the fastest, those of equal links by turns. Pure.
void thin_out(std::vector<Route>& routes, const std::vector<Interface>& links, std::size_t most,
              std::size_t first);

class FullSizeTrial;

// Connects one path over TCP: connect, hello, welcome. Each attempt takes the next candidate. If
// the hello is of another kind, what is Connected has no path yet: connection() is its beginning.
class TcpDialer final : public Dialer {
public:
    struct Options {
        Nanos dead_after = 5 * kSecond;    // SocketTuning
        std::string congestion = "auto";   // tcp/congestion.h
        std::shared_ptr<PagePipes> pages;  // TcpPath::Options
        // The first attempt takes no pair of addresses that is known to be dead (tcp/reach.h),
        // and fails at once if all are, or the link has no carrier.
        bool pass_over = false;
        std::shared_ptr<TcpHome> home;   // of this connection; NULL: none
        std::uint32_t gives_way_to = 0;  // Dialer::gives_way_to()
        bool reserve = false;            // Dialer::reserve()
    };
    TcpDialer(std::shared_ptr<const Device> device, Route route, const wire::Hello& hello,
              const Options& options);
    ~TcpDialer() override;

    std::uint32_t gives_way_to() const override { return gives_way_to_; }
    bool reserve() const override { return reserve_; }
    void start(std::uint32_t incarnation, Nanos now) override;
    Result poll(Nanos now, Connected& connected) override;
    void cancel() override;
    void keep_small(bool small) override { small_ = small; }
    Trial try_full_size(Nanos now) override;
    bool reached(Nanos now) const override;
    Carrier carrier() const override;
    const char* failure() const override { return failure_.c_str(); }
    const char* describe() const override { return description_.c_str(); }
    LinkCounters& counters() override { return counters_; }
    // What the peer's last welcome said.
    const wire::EndpointList& endpoints() const { return endpoints_; }
    const wire::PortList& ports() const { return ports_; }
    // Once, after Connected, where the hello is not of kind kTcp.
    UniqueFd connection() { return std::move(fd_); }

private:
    enum class Stage { Idle, Connecting, Greeting, Waiting };
    Result fail(Result result, std::string text);
    Result refused_or_failed(int error) const;
    Result poll_connect(Nanos now);
    Result poll_greeting();
    Result poll_welcome(Connected& connected);
    Result read_welcome(wire::Welcome& welcome);
    void adopt(const wire::Welcome& welcome, Connected& connected);
    bool choose_candidate();
    bool leaves_link(const Address& own, const Address& peer) const;

    std::shared_ptr<const Device> device_;
    Route route_;
    wire::Hello hello_;
    Nanos dead_after_;
    Congestion congestion_;
    LossWatch losses_;
    std::shared_ptr<PagePipes> pages_;
    std::shared_ptr<TcpHome> home_;
    bool pass_over_;
    std::uint32_t gives_way_to_;
    bool reserve_;
    bool small_ = false;
    std::unique_ptr<FullSizeTrial> trial_;  // while one is under way
    LinkCounters& counters_;
    wire::EndpointList endpoints_;
    wire::PortList ports_;
    std::size_t candidate_ = 0;
    std::size_t preferred_ = 0;
    std::size_t attempts_ = 0;  // since the last success
    std::size_t silent_ = 0;    // attempts that nobody answered
    bool kept_ = false;         // a connection has kept to the link
    bool anyhow_ = false;       // this attempt does not (begin_connect)
    Stage stage_ = Stage::Idle;
    UniqueFd fd_;
    int begin_error_ = 0;
    Nanos began_ = 0;
    Nanos round_trip_ = 0;
    std::array<std::byte, wire::kHelloBytes> out_;
    std::size_t out_done_ = 0;
    std::array<std::byte, wire::kWelcomeBytes> in_;
    std::size_t in_done_ = 0;
    std::string failure_ = "not tried yet";
    std::string description_;
};

}  // namespace deft::net
