// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/probed_rates.h"

#include <gtest/gtest.h>

namespace deft::net {
namespace {

constexpr std::int64_t kNow = 1'800'000'000;

Address address(const char* text) {
    Address parsed;
    EXPECT_TRUE(parse_address(text, parsed));
    return parsed;
}

// As `deft probe --json` writes it, asked from a host that has 10.1.0.1 and fd00::1.
std::string probe(const std::string& head = R"("format": "deft-probe", "version": 1)") {
    return "{" + head + R"(, "exit_code": 0, "pairs": [
      {"from": "node1", "to": "node2", "problem": "", "links": [
        {"from": "eth0", "to": "eth0", "from_address": "10.1.0.1", "to_address": "10.1.0.2",
         "one_network": true, "problem": "", "round_trip_us": {"least": 31, "median": 38},
         "there": {"gbit_per_s": 23.4, "sent_again": 0, "path_mtu": 9000},
         "back": {"gbit_per_s": 11.5, "sent_again": 0, "path_mtu": 9000}},
        {"from": "eth1", "to": "eth1", "from_address": "fd00::1", "to_address": "fd00::2",
         "problem": "", "there": {"gbit_per_s": 9.4}, "back": null},
        {"from": "eth0", "to": "eth1", "from_address": "10.1.0.1", "to_address": "10.2.0.2",
         "problem": "no way", "there": null, "back": null}]},
      {"from": "node2", "to": "node3", "problem": "", "links": [
        {"from_address": "10.1.0.2", "to_address": "10.1.0.3",
         "there": {"gbit_per_s": 1}, "back": {"gbit_per_s": 2}}]}], "problems": []})";
}

const std::vector<Address>& own() {
    static const std::vector<Address> list = {address("10.1.0.1"), address("fd00::1")};
    return list;
}

std::string problem_of(const std::string& text, std::int64_t written = kNow) {
    std::string problem;
    EXPECT_EQ(ProbedRates::from(text, written, kNow, own(), problem).size(), 0U);
    EXPECT_EQ(problem.find('\n'), problem.npos);
    return problem;
}

TEST(ProbedRates, AreThoseFromThisHost) {
    std::string problem;
    const ProbedRates rates = ProbedRates::from(probe(), kNow, kNow, own(), problem);
    EXPECT_EQ(problem, "");
    EXPECT_EQ(rates.size(), 2U);
    EXPECT_DOUBLE_EQ(rates.rate(address("10.1.0.1"), address("10.1.0.2")), 23.4e9 / 8);
    EXPECT_DOUBLE_EQ(rates.rate(address("fd00::1"), address("fd00::2")), 9.4e9 / 8);
    EXPECT_EQ(rates.rate(address("10.1.0.1"), address("10.2.0.2")), 0);
    EXPECT_EQ(rates.rate(address("10.1.0.2"), address("10.1.0.1")), 0);  // not from here
}

// The host that was asked reads the same file the other way round.
TEST(ProbedRates, OfTheOtherHostAreTheWayBack) {
    std::string problem;
    const ProbedRates rates =
        ProbedRates::from(probe(), kNow, kNow, {address("10.1.0.2")}, problem);
    EXPECT_DOUBLE_EQ(rates.rate(address("10.1.0.2"), address("10.1.0.1")), 11.5e9 / 8);
    EXPECT_DOUBLE_EQ(rates.rate(address("10.1.0.2"), address("10.1.0.3")), 1e9 / 8);
}

TEST(ProbedRates, AnOldFileIsNotUsed) {
    EXPECT_NE(problem_of(probe(), kNow - 12 * 86400).find("12 days ago"), std::string::npos);
    // What the file says of itself counts, not when it was copied.
    const std::string old =
        probe(R"("format": "deft-probe", "version": 1, "measured_at": 1799000000)");
    EXPECT_NE(problem_of(old).find("11 days ago"), std::string::npos);
    const std::string before_all =
        probe(R"("format": "deft-probe", "version": 1, "measured_at": -9223372036854775808)");
    EXPECT_NE(problem_of(before_all).find("20833 days ago"), std::string::npos);
    std::string problem;
    EXPECT_EQ(ProbedRates::from(probe(), kNow - 6 * 86400, kNow, own(), problem).size(), 2U);
}

TEST(ProbedRates, WhatIsNoProbeIsNamed) {
    EXPECT_NE(problem_of("").find("no result of deft probe"), std::string::npos);
    EXPECT_NE(problem_of("[]").find("no result of deft probe"), std::string::npos);
    EXPECT_NE(problem_of(probe().substr(0, 700)).find("no result of deft probe"),
              std::string::npos);
    EXPECT_NE(problem_of(probe(R"("format": "deft-plan", "version": 1)")).find("this release's"),
              std::string::npos);
    EXPECT_NE(problem_of(probe(R"("format": "deft-probe", "version": 2)")).find("this release's"),
              std::string::npos);
    EXPECT_NE(problem_of(R"({"format": "deft-probe", "version": 1, "pairs": []})")
                  .find("no measured pair of this host's links"),
              std::string::npos);
}

}  // namespace
}  // namespace deft::net
