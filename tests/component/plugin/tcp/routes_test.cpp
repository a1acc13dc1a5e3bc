// SPDX-License-Identifier: Apache-2.0
// Which routes a connection gets: addresses that both hosts have, and few descriptors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "plugin/tcp/descriptors.h"
#include "plugin/tcp/tcp_dialer.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

using ::testing::ElementsAre;

Address address_of(const char* text) {
    Address address;
    EXPECT_TRUE(parse_address(text, address)) << text;
    address.prefix = address.family == AF_INET ? 24 : 64;
    return address;
}

Interface link_with(const char* name, std::initializer_list<const char*> addresses,
                    std::int64_t speed = 10000) {
    Interface link;
    link.name = name;
    link.up = true;
    link.speed_mbps = speed;
    for (const char* address : addresses) {
        link.addresses.push_back(address_of(address));
    }
    return link;
}

wire::EndpointList endpoints_of(const std::vector<Interface>& links) {
    wire::EndpointList list;
    for (std::size_t i = 0; i < links.size(); ++i) {
        for (const Address& address : links[i].addresses) {
            list.entries[list.count++] = {static_cast<std::uint8_t>(i), 1, address};
        }
    }
    return list;
}

std::vector<Address> all_of(const std::vector<Interface>& links) {
    std::vector<Address> all = {address_of("127.0.0.1"), address_of("::1")};
    for (const Interface& link : links) {
        all.insert(all.end(), link.addresses.begin(), link.addresses.end());
    }
    return all;
}

// "10.0.0.1 10.0.0.2": where the first attempt of each route goes.
std::vector<std::string> firsts(const std::vector<Route>& routes) {
    std::vector<std::string> text;
    for (const Route& route : routes) {
        const auto& [own, peer] = route.candidates[0];
        text.push_back(own.text() + " " + peer.address.text());
    }
    return text;
}

TEST(Doubles, AddressesThatBothHostsHaveLeadNowhere) {
    std::vector<Interface> own = {link_with("eth0", {"10.0.0.1"}),
                                  link_with("vboxnet0", {"192.168.56.1"})};
    const std::vector<Address> host = all_of(own);
    wire::EndpointList peer =
        endpoints_of({link_with("eth0", {"10.0.0.2"}), link_with("vboxnet0", {"192.168.56.1"})});
    EXPECT_FALSE(drop_doubles(host, own, peer));
    EXPECT_THAT(firsts(plan_routes(own, peer)), ElementsAre("10.0.0.1 10.0.0.2"));
}

TEST(Doubles, TheOtherFamilyRemains) {
    std::vector<Interface> own = {link_with("eth0", {"10.0.2.15", "fd07::1"})};
    const std::vector<Address> host = all_of(own);
    wire::EndpointList peer = endpoints_of({link_with("eth0", {"10.0.2.15", "fd07::2"})});
    EXPECT_FALSE(drop_doubles(host, own, peer));
    EXPECT_THAT(firsts(plan_routes(own, peer)), ElementsAre("fd07::1 fd07::2"));
}

TEST(Doubles, APeerOnThisHostHasNoneButOurs) {
    std::vector<Interface> own = {link_with("eth0", {"10.0.0.1"})};
    std::vector<Address> host = all_of(own);
    host.push_back(address_of("10.0.1.1"));  // of a link that this process does not use
    wire::EndpointList peer =
        endpoints_of({link_with("eth0", {"10.0.0.1"}), link_with("eth1", {"10.0.1.1"})});
    EXPECT_TRUE(drop_doubles(host, own, peer));
    EXPECT_EQ(peer.count, 2U);
    // A peer elsewhere that also offers its loopback means its own.
    peer = endpoints_of({link_with("lo", {"127.0.0.1"}), link_with("eth0", {"10.0.0.2"})});
    EXPECT_FALSE(drop_doubles(host, own, peer));
    EXPECT_EQ(peer.count, 1U);
    EXPECT_EQ(own[0].addresses.size(), 1U);
}

TEST(ThinOut, TheFastestStayAndEqualOnesTakeTurns) {
    const std::vector<Interface> links = {link_with("a", {"10.0.0.1"}, 10000),
                                          link_with("b", {"10.0.1.1"}, 25000),
                                          link_with("c", {"10.0.2.1"}, 25000)};
    const auto left = [&](std::size_t most, std::size_t first) {
        std::vector<Route> routes(3);
        routes[1].link = 1;
        routes[2].link = 2;
        thin_out(routes, links, most, first);
        std::vector<std::size_t> which;
        for (const Route& route : routes) {
            which.push_back(route.link);
        }
        return which;
    };
    EXPECT_THAT(left(3, 1), ElementsAre(0, 1, 2));
    EXPECT_THAT(left(1, 0), ElementsAre(1));
    EXPECT_THAT(left(1, 2), ElementsAre(2));
    EXPECT_THAT(left(2, 2), ElementsAre(2, 1));
}

TEST(Descriptors, FurtherPathsOnlyWhileFirstOnesAreSure) {
    EXPECT_EQ((Descriptors{64, 20}.spare()), 0U);
    EXPECT_EQ((Descriptors{256, 20}.spare()), 44U);
    EXPECT_EQ((Descriptors{256, 70}.spare()), 0U);
    EXPECT_EQ((Descriptors{1024, 200}.spare()), 312U);
    EXPECT_EQ((Descriptors{1024, 900}.spare()), 0U);
    EXPECT_EQ((Descriptors{65536, 200}.spare()), 64824U);
    EXPECT_EQ((Descriptors{20, 30}.spare()), 0U);
    EXPECT_FALSE((Descriptors{1024, 600}.scarce(false)));
    EXPECT_TRUE((Descriptors{1024, 800}.scarce(false)));
    EXPECT_FALSE((Descriptors{1024, 800}.scarce(true)));
    EXPECT_TRUE((Descriptors{1024, 900}.scarce(true)));
    EXPECT_TRUE((Descriptors{20, 30}.scarce(true)));
}

// Sets this process's limit for the time of a test.
class Limit {
public:
    explicit Limit(std::size_t limit) {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
        const rlimit wanted{limit, before_.rlim_max};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &wanted), 0);
    }
    ~Limit() { (void)setrlimit(RLIMIT_NOFILE, &before_); }

private:
    rlimit before_{};
};

TEST(Descriptors, CountsWhatIsOpen) {
    const Limit limit(300);
    const std::size_t before = Descriptors::now().used;
    const UniqueFd fd(fcntl(0, F_DUPFD_CLOEXEC, 200));
    ASSERT_TRUE(fd);
    EXPECT_EQ(Descriptors::now().used, before + 1);
    EXPECT_EQ(Descriptors::now().limit, 300U);
}

// How many descriptors the kernel's table of this process has room for.
long table_size() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        if (word == "FDSize:") {
            long size = 0;
            status >> size;
            return size;
        }
    }
    return 0;
}

// In a child, whose table is its own, and as small as the kernel makes it.
TEST(Descriptors, TheTableHasRoomBeforeAConnectionNeedsIt) {
    const std::size_t before = Descriptors::now().used;
    const pid_t child = fork();
    if (child == 0) {
        const long small = table_size();
        Descriptors::make_room();
        const auto wanted =
            static_cast<long>(std::min<std::size_t>(Descriptors::now().limit, 4096));
        const bool good = small < wanted && table_size() >= wanted;
        _exit(good && Descriptors::now().used == before ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

// As Socket lives there: one descriptor for each end of a connection.
TEST(Descriptors, WithFewOfThemEveryConnectionComesUp) {
    const std::size_t open = Descriptors::now().used;
    const Limit limit(open + 150);  // each pair has listening sockets of its own, four
    std::vector<std::unique_ptr<TcpPair>> pairs;
    for (int i = 0; i < 20; ++i) {
        pairs.push_back(std::make_unique<TcpPair>(4));
        ASSERT_TRUE(pairs.back()->establish()) << i;
        EXPECT_EQ(pairs.back()->sender->paths(), 1U);
        std::vector<std::byte> buffer(5000);
        EXPECT_EQ(pairs.back()->transfer(std::vector<std::byte>(5000, std::byte{7}), buffer), 5000);
    }
}

}  // namespace
}  // namespace deft::net::testing
