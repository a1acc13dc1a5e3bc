// SPDX-License-Identifier: Apache-2.0
// Who says no to an attempt to connect: the peer's host (a reset), which then has nobody listening,
// or a firewall on the way (ICMP), which says nothing about the peer. The host at the other end of
// a TUN device is played here.
//
// Exit status 77: namespaces or TUN devices are not to be had here.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "plugin/tcp/tcp_dialer.h"

namespace {

using deft::Address;
using deft::UniqueFd;
using deft::net::Dialer;
using deft::net::steady_now;
using deft::net::TcpDialer;
using Bytes = std::vector<unsigned char>;

constexpr int kSkipped = 77;
constexpr deft::net::Nanos kPatience = 30 * deft::net::kSecond;

[[noreturn]] void die(const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
    std::exit(1);
}

UniqueFd make_device() {
    UniqueFd fd(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    ifreq request{};
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    std::strncpy(request.ifr_name, "eth0", IFNAMSIZ - 1);
    if (!fd || ioctl(fd.get(), TUNSETIFF, &request) != 0) {
        return {};
    }
    const bool up =
        std::system(
            "ip link set lo up && ip addr add 10.78.0.1/24 dev eth0 && ip link set eth0 up &&"
            " ip addr add fd78::1/64 dev eth0 nodad 2>/dev/null") == 0;
    return up ? std::move(fd) : UniqueFd();
}

std::uint16_t checksum(Bytes bytes) {
    bytes.resize((bytes.size() + 1) / 2 * 2);
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
        sum += static_cast<std::uint32_t>(bytes[i] << 8 | bytes[i + 1]);
    }
    while (sum >> 16 != 0) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return htons(static_cast<std::uint16_t>(~sum));
}

template <class Header>
void append(Bytes& bytes, const Header& header) {
    const auto* begin = reinterpret_cast<const unsigned char*>(&header);
    bytes.insert(bytes.end(), begin, begin + sizeof(header));
}

// `payload`, whose checksum is at `at`, from where `request` went to where it came from.
Bytes reply(const Bytes& request, std::uint8_t protocol, Bytes payload, std::size_t at) {
    Bytes packet;
    Bytes pseudo;
    const bool v6 = request[0] >> 4 == 6;
    if (v6) {
        ip6_hdr header;
        std::memcpy(&header, request.data(), sizeof(header));
        std::swap(header.ip6_src, header.ip6_dst);
        header.ip6_nxt = protocol;
        header.ip6_plen = htons(static_cast<std::uint16_t>(payload.size()));
        append(packet, header);
        append(pseudo, header.ip6_src);
        append(pseudo, header.ip6_dst);
    } else {
        iphdr header{};
        std::memcpy(&header, request.data(), sizeof(header));
        std::swap(header.saddr, header.daddr);
        header.ihl = 5;
        header.protocol = protocol;
        header.tot_len = htons(static_cast<std::uint16_t>(sizeof(header) + payload.size()));
        header.check = 0;
        Bytes raw;
        append(raw, header);
        header.check = checksum(raw);
        append(packet, header);
        append(pseudo, header.saddr);
        append(pseudo, header.daddr);
    }
    append(pseudo, htons(protocol));
    append(pseudo, htons(static_cast<std::uint16_t>(payload.size())));
    if (protocol == IPPROTO_ICMP) {
        pseudo.clear();
    }
    pseudo.insert(pseudo.end(), payload.begin(), payload.end());
    const std::uint16_t sum = checksum(pseudo);
    std::memcpy(payload.data() + at, &sum, sizeof(sum));
    packet.insert(packet.end(), payload.begin(), payload.end());
    return packet;
}

// What a host says to a request for a connection where nobody listens.
Bytes reset(const Bytes& request, const tcphdr& asked) {
    tcphdr header{};
    header.source = asked.dest;
    header.dest = asked.source;
    header.ack_seq = htonl(ntohl(asked.seq) + 1);
    header.doff = sizeof(header) / 4;
    header.rst = header.ack = 1;
    Bytes payload;
    append(payload, header);
    return reply(request, IPPROTO_TCP, payload, offsetof(tcphdr, check));
}

// What a firewall says that rejects it.
Bytes unreachable(const Bytes& request) {
    Bytes payload;
    std::uint8_t protocol = IPPROTO_ICMP;
    if (request[0] >> 4 == 6) {
        protocol = IPPROTO_ICMPV6;
        icmp6_hdr header{};
        header.icmp6_type = ICMP6_DST_UNREACH;
        header.icmp6_code = ICMP6_DST_UNREACH_NOPORT;
        append(payload, header);
    } else {
        icmphdr header{};
        header.type = ICMP_DEST_UNREACH;
        header.code = ICMP_PORT_UNREACH;
        append(payload, header);
    }
    payload.insert(payload.end(), request.begin(), request.end());
    return reply(request, protocol, payload, 2);
}

void answer(const UniqueFd& device, bool firewall) {
    Bytes request(2048);
    const ssize_t got = read(device.get(), request.data(), request.size());
    if (got <= 0) {
        return;
    }
    request.resize(static_cast<std::size_t>(got));
    const bool v6 = request[0] >> 4 == 6;
    const std::size_t header = v6 ? sizeof(ip6_hdr) : sizeof(iphdr);
    if (request[v6 ? offsetof(ip6_hdr, ip6_nxt) : offsetof(iphdr, protocol)] != IPPROTO_TCP) {
        return;
    }
    tcphdr asked;
    std::memcpy(&asked, request.data() + header, sizeof(asked));
    const Bytes packet = firewall ? unreachable(request) : reset(request, asked);
    if (write(device.get(), packet.data(), packet.size()) != static_cast<ssize_t>(packet.size())) {
        die("the answer could not be given");
    }
}

Dialer::Result dial(const UniqueFd& device, const char* own, const char* peer, bool firewall,
                    std::string& failure) {
    deft::Interface link;
    link.name = "eth0";
    link.index = static_cast<decltype(link.index)>(if_nametoindex("eth0"));
    link.up = true;
    deft::net::Route route;
    Address from;
    Address to;
    if (!deft::parse_address(own, from) || !deft::parse_address(peer, to)) {
        die("no address");
    }
    link.addresses.push_back(from);
    route.candidates = {{from, {0, 7777, to}}};
    TcpDialer dialer(
        std::make_shared<const deft::net::Device>(deft::net::make_device({std::move(link)})), route,
        {}, {});
    deft::net::Connected connected;
    dialer.start(1, steady_now());
    const deft::net::Nanos start = steady_now();
    Dialer::Result result = Dialer::Result::Pending;
    while (result == Dialer::Result::Pending && steady_now() - start < kPatience) {
        answer(device, firewall);
        result = dialer.poll(steady_now(), connected);
        poll(nullptr, 0, 1);
    }
    failure = dialer.failure();
    return result;
}

}  // namespace

int main(int, char** arguments) {
    if (unshare(CLONE_NEWNET) != 0) {
        if (std::getenv("DEFT_TEST_INSIDE") == nullptr &&
            std::system("unshare -Urn true 2>/dev/null") == 0) {
            setenv("DEFT_TEST_INSIDE", "1", 1);
            execlp("unshare", "unshare", "-Urn", "--", arguments[0], nullptr);
        }
        std::printf("skipped: neither root nor user namespaces\n");
        return kSkipped;
    }
    const UniqueFd device = make_device();
    if (!device) {
        std::printf("skipped: no TUN device for this user\n");
        return kSkipped;
    }
    for (const bool v6 : {false, true}) {
        for (const bool firewall : {false, true}) {
            std::string failure;
            const Dialer::Result result = dial(device, v6 ? "fd78::1" : "10.78.0.1",
                                               v6 ? "fd78::2" : "10.78.0.2", firewall, failure);
            const bool said = failure.find("firewall") != std::string::npos;
            if (result != (firewall ? Dialer::Result::Failed : Dialer::Result::Refused) ||
                said != firewall) {
                die(std::string(v6 ? "IPv6" : "IPv4") + (firewall ? ", ICMP" : ", reset") +
                    ": result " + std::to_string(static_cast<int>(result)) + ", " + failure);
            }
        }
    }
    std::string failure;
    if (dial(device, "10.78.0.1", "10.78.0.1", false, failure) != Dialer::Result::Refused) {
        die("on this host: " + failure);
    }
    std::printf("ok\n");
    return 0;
}
