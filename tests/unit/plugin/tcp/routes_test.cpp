// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plugin/tcp/tcp_dialer.h"

namespace deft::net {
namespace {

Interface link(const char* name, const char* text, int prefix) {
    Interface result;
    result.name = name;
    Address address;
    EXPECT_TRUE(parse_address(text, address));
    address.prefix = prefix;
    result.addresses.push_back(address);
    return result;
}

wire::EndpointList peer(std::initializer_list<const char*> addresses) {
    wire::EndpointList list;
    for (const char* text : addresses) {
        wire::Endpoint& endpoint = list.entries[list.count];
        endpoint.link = static_cast<std::uint8_t>(list.count++);
        endpoint.port = 1;
        EXPECT_TRUE(parse_address(text, endpoint.address));
    }
    return list;
}

TEST(Routes, LinksOfOneNetworkArePaired) {
    const auto routes = plan_routes({link("a", "10.0.1.1", 24), link("b", "10.0.2.1", 24)},
                                    peer({"10.0.2.2", "10.0.1.2"}));
    ASSERT_EQ(routes.size(), 2U);
    for (const Route& route : routes) {
        const auto& [own, endpoint] = route.candidates[0];
        EXPECT_TRUE(own.same_network(endpoint.address));
        EXPECT_EQ(route.candidates.size(), 2U);  // the other one may be reached through a router
    }
}

TEST(Routes, InOneFlatNetworkEachLinkIsUsedOnce) {
    const auto routes = plan_routes({link("a", "10.0.0.1", 16), link("b", "10.0.0.2", 16)},
                                    peer({"10.0.1.1", "10.0.1.2"}));
    ASSERT_EQ(routes.size(), 2U);
    EXPECT_EQ(routes[0].link, 0U);
    EXPECT_EQ(routes[0].candidates[0].second.link, 0);
    EXPECT_EQ(routes[1].link, 1U);
    EXPECT_EQ(routes[1].candidates[0].second.link, 1);
}

TEST(Routes, TheSideWithMoreLinksUsesThemAll) {
    const std::vector<Interface> one = {link("a", "10.0.0.1", 16)};
    auto routes = plan_routes(one, peer({"10.0.1.1", "10.0.1.2", "10.0.1.3"}));
    EXPECT_EQ(routes.size(), 3U);
    routes =
        plan_routes({link("a", "10.0.0.1", 16), link("b", "10.0.0.2", 16)}, peer({"10.0.1.1"}));
    EXPECT_EQ(routes.size(), 2U);
}

// One of the families may be filtered on the way.
TEST(Routes, BothFamiliesOfALinkAreTried) {
    Interface both = link("a", "10.0.0.1", 24);
    both.addresses.push_back(link("a", "fd00::1", 64).addresses[0]);
    wire::EndpointList endpoints = peer({"10.0.0.2", "fd00::2", "10.0.0.3"});
    endpoints.entries[1].link = 0;
    endpoints.entries[2].link = 1;
    const auto routes = plan_routes({both}, endpoints);
    ASSERT_EQ(routes.size(), 2U);
    ASSERT_EQ(routes[0].candidates.size(), 3U);
    EXPECT_EQ(routes[0].candidates[0].second.address.family, AF_INET);
    EXPECT_EQ(routes[0].candidates[1].second.link, 1);
    EXPECT_EQ(routes[0].candidates[2].first.family, AF_INET6);
    EXPECT_EQ(routes[0].candidates[2].second.address.family, AF_INET6);
}

TEST(Routes, FamiliesAndLoopbackDoNotMix) {
    EXPECT_TRUE(plan_routes({link("a", "10.0.0.1", 24)}, peer({"fd00::1"})).empty());
    EXPECT_TRUE(plan_routes({link("lo", "127.0.0.1", 8)}, peer({"10.0.0.1"})).empty());
    const auto routes =
        plan_routes({link("127.0.0.2", "127.0.0.2", 32), link("127.0.0.3", "127.0.0.3", 32)},
                    peer({"127.0.0.2", "127.0.0.3"}));
    ASSERT_EQ(routes.size(), 2U);
    EXPECT_EQ(routes[1].candidates[0].first, routes[1].candidates[0].second.address);
}

Interface reserve(const char* name, const char* address) {
    Interface kept = link(name, address, 24);
    kept.reserve = true;
    return kept;
}

TEST(Routes, ReservesComeBehindWhatTheyAreFor) {
    const std::vector<Interface> own{link("eth0", "10.0.1.1", 24), reserve("ib0", "10.0.2.1"),
                                     reserve("ib1", "10.0.3.1")};
    const auto expect = [](const Route& route, std::size_t link, std::size_t peer, bool kept) {
        EXPECT_EQ(route.link, link);
        EXPECT_EQ(route.candidates[0].second.link, peer);
        EXPECT_EQ(route.candidates.size(), kept ? 2U : 1U) << "of its own kind";
        EXPECT_EQ(route.reserve, kept);
    };
    const auto both = plan_routes(own, peer({"10.0.1.2", "10.0.3.2", "10.0.2.2"}), 1);
    ASSERT_EQ(both.size(), 3U);
    expect(both[0], 0, 0, false);
    EXPECT_EQ(both[1].candidates[0].second.link, both[1].link == 1 ? 2 : 1) << "of one network";
    EXPECT_TRUE(both[1].reserve && both[2].reserve);

    // A peer that has more links of the first kind: its second is reached from ours of that kind.
    const auto wide = plan_routes(own, peer({"10.0.1.2", "10.0.4.2"}));
    ASSERT_GE(wide.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_FALSE(wide[i].reserve);
        EXPECT_EQ(wide[i].link, 0U);
    }

    // A host whose NCCL has no ports: its link takes part in what is the peer's reserve.
    const auto one = plan_routes({own[0]}, peer({"10.0.1.2", "10.0.2.2"}), 1);
    ASSERT_EQ(one.size(), 2U);
    EXPECT_TRUE(!one[0].reserve && one[1].reserve);

    EXPECT_TRUE(plan_routes({own[1]}, peer({"10.0.2.2"}), 0).empty()) << "NCCL's IB carries those";
}

}  // namespace
}  // namespace deft::net
