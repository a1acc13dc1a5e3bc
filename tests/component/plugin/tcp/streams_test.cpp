// SPDX-License-Identifier: Apache-2.0
// Several TCP connections per link, over both address families.
#include <gtest/gtest.h>

#include "plugin/tcp/tcp_socket.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

ConnectionOptions with_streams(std::size_t streams, bool checksum) {
    ConnectionOptions options;
    options.streams = streams;
    options.checksum = checksum;
    return options;
}

void expect_traffic(TcpPair& pair) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{8192},
                                   std::size_t{8193}, std::size_t{700001}, std::size_t{3000000}}) {
        const std::vector<std::byte> data = bytes_of(size, static_cast<unsigned>(size));
        std::vector<std::byte> buffer(3 << 20);
        ASSERT_EQ(pair.transfer(data, buffer), static_cast<long>(size));
        EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
    }
}

TEST(Streams, EachLinkHasSoMany) {
    for (const bool checksum : {false, true}) {
        TcpPair pair(2, 30 * kSecond, with_streams(3, checksum));
        ASSERT_TRUE(pair.establish());
        EXPECT_EQ(pair.sender->paths(), 6U);
        EXPECT_EQ(pair.receiver->paths(), 6U);
        expect_traffic(pair);
    }
}

TEST(Streams, NeverMoreThanAConnectionMayHave) {
    TcpPair pair(3, 30 * kSecond, with_streams(8, false));
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.sender->paths(), wire::kMaxPaths);
    expect_traffic(pair);
}

TEST(Streams, OverIpv6Too) {
    Interface link;
    link.name = "::1";
    link.loopback = link.up = true;
    Address address;
    ASSERT_TRUE(parse_address(link.name, address));
    link.addresses.push_back(address);
    std::uint16_t port = 0;
    std::string problem;
    if (!listen_on(address, port, problem)) {
        GTEST_SKIP() << "no IPv6 here: " << problem;
    }
    TcpPair pair(1, 30 * kSecond, with_streams(2, false));
    pair.device = std::make_shared<const Device>(make_device({link}));
    pair.listener = Listener::open(pair.device, pair.options, pair.handle, problem);
    ASSERT_NE(pair.listener, nullptr) << problem;
    ASSERT_TRUE(pair.establish());
    EXPECT_EQ(pair.sender->paths(), 2U);
    expect_traffic(pair);
}

}  // namespace
}  // namespace deft::net::testing
