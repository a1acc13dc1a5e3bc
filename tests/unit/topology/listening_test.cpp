// SPDX-License-Identifier: Apache-2.0
#include "topology/listening.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace deft {
namespace {

TEST(Ports, AreTwoNumbers) {
    PortRange range;
    ASSERT_TRUE(parse_ports("20000-20999", range));
    EXPECT_EQ(range.first, 20000);
    EXPECT_EQ(range.last, 20999);
    EXPECT_FALSE(range.any());
    ASSERT_TRUE(parse_ports("1-65535", range));
    ASSERT_TRUE(parse_ports("80-80", range));
    ASSERT_TRUE(parse_ports("", range));
    EXPECT_TRUE(range.any());
}

TEST(Ports, NothingElseWillDo) {
    PortRange range;
    for (const char* const text : {"20000", "20000-", "-20000", "20001-20000", "0-10", "1-65536",
                                   "a-b", "1-2-3", "1 - 2", "1-2 ", "-", "+1-2"}) {
        EXPECT_FALSE(parse_ports(text, range)) << text;
    }
}

UniqueFd make() {
    return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

TEST(Ports, EachSocketGetsItsOwnAndTheLastOneNone) {
    Address address;
    ASSERT_TRUE(parse_address("127.0.0.1", address));
    // Three that are free.
    std::uint16_t port = 0;
    std::string why;
    PortRange range;
    for (int attempt = 0; attempt < 100 && range.any(); ++attempt) {
        const UniqueFd first = listen_in({}, make, address, 1, port, why);
        range = {static_cast<std::uint16_t>(port + 1), static_cast<std::uint16_t>(port + 3)};
        for (std::uint16_t next = range.first; next != 0 && next <= range.last; ++next) {
            std::uint16_t got = 0;
            if (!listen_in({next, next}, make, address, 1, got, why)) {
                range = {};
                break;
            }
        }
    }
    ASSERT_FALSE(range.any());
    std::vector<UniqueFd> sockets;
    unsigned sum = 0;
    for (int i = 0; i < 3; ++i) {
        sockets.push_back(listen_in(range, make, address, 1, port, why));
        ASSERT_TRUE(sockets.back()) << why;
        sum += port;
    }
    EXPECT_EQ(sum, 3U * range.first + 3U);
    EXPECT_FALSE(listen_in(range, make, address, 1, port, why));
    EXPECT_EQ(why, "all ports of DEFT_PORTS=" + std::to_string(range.first) + "-" +
                       std::to_string(range.last) + " are in use on 127.0.0.1");
}

}  // namespace
}  // namespace deft
