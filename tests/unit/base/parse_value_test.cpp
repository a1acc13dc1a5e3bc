// SPDX-License-Identifier: Apache-2.0
// One value: how it is read by its type, what it may be, and names with the rank in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <locale.h>
#include <unistd.h>
#include <chrono>
#include <span>

#include "base/config.h"

namespace deft {
namespace {

using testing::HasSubstr;

struct Parsed {
    const char* text;
    std::int64_t integer;  // -1: refused
};

constexpr Variable kBytes = {
    Key::Mode, "DEFT_B", ValueType::Bytes, "", "0", "0..", VariableGroup::Debug, "0.1", "x"};
constexpr Variable kTime = {
    Key::Mode, "DEFT_T", ValueType::Duration, "ms", "0", "0..", VariableGroup::Debug, "0.1", "x"};
constexpr Variable kInteger = {
    Key::Mode, "DEFT_I", ValueType::Integer, "", "1", "1..10", VariableGroup::Debug, "0.1", "x"};
constexpr Variable kReal = {
    Key::Mode, "DEFT_R", ValueType::Real, "", "0", "-1..1", VariableGroup::Debug, "0.1", "x"};

void expect_parsed(const Variable& row, std::span<const Parsed> cases) {
    for (const Parsed& item : cases) {
        SCOPED_TRACE(item.text);
        Setting setting;
        const std::string error = parse_value(row, item.text, setting);
        EXPECT_EQ(error.empty(), item.integer >= 0) << error;
        if (error.empty()) {
            EXPECT_EQ(setting.integer, item.integer);
        }
    }
}

TEST(ParseValue, Sizes) {
    const Parsed cases[] = {{"0", 0},
                            {"65536", 65536},
                            {"64K", 65536},
                            {"64k", 65536},
                            {"64Ki", 65536},
                            {"64KiB", 65536},
                            {"1.5M", 1572864},
                            {"1G", 1 << 30},
                            {"+2K", 2048},
                            {"1e3", 1000},
                            {"9007199254740993", 9007199254740993},
                            {"8589934591G", 8589934591 * (std::int64_t{1} << 30)},
                            {"8589934592G", -1},
                            {"99999999999999999999", -1},
                            {"64KB", -1},
                            {"64 K", -1},
                            {"K", -1},
                            {"", -1},
                            {"-1", -1},
                            {"0.3", -1},
                            {"0x10", -1},
                            {"inf", -1},
                            {"nan", -1},
                            {"1K1", -1},
                            {"--1", -1},
                            {"+-1", -1},
                            {"1,5K", -1},
                            {"1e999", -1},
                            {"1e", -1},
                            {" 1", -1}};
    expect_parsed(kBytes, cases);
}

TEST(ParseValue, Durations) {
    const Parsed cases[] = {{"250", 250000000},
                            {"1.5", 1500000},
                            {"10ns", 10},
                            {"3us", 3000},
                            {"200ms", 200000000},
                            {"0.07s", 70000000},
                            {"1.1s", 1100000000},
                            {"2min", 120000000000},
                            {"1h", 3600000000000},
                            {"0.3us", 300},
                            {"0.5ns", -1},
                            {"1m", -1},
                            {"1S", -1},
                            {"5 s", -1},
                            {"1e10h", -1}};
    expect_parsed(kTime, cases);
}

TEST(ParseValue, AUnitThatIsNoneIsGuessed) {
    Setting setting;
    const auto guess = [&setting](const Variable& row, const char* text) {
        const std::string error = parse_value(row, text, setting);
        const auto at = error.find("; did you mean ");
        return at == error.npos ? std::string() : error.substr(at + 15);
    };
    EXPECT_EQ(guess(kBytes, "8GB"), "8G?");
    EXPECT_EQ(guess(kBytes, "64kB"), "64k?");
    EXPECT_EQ(guess(kBytes, "100B"), "100?");
    EXPECT_EQ(guess(kTime, "5m"), "5min?");
    EXPECT_EQ(guess(kTime, "5sec"), "5s?");
    EXPECT_EQ(guess(kTime, "2hours"), "2h?");
    for (const char* text : {"GB", "xGB", "-1GB", "8G B", "8GBB", ""}) {
        EXPECT_EQ(guess(kBytes, text), "") << text;
    }
    EXPECT_EQ(guess(kInteger, "3m"), "");
}

TEST(ParseValue, RangesIncludeTheirEnds) {
    const Parsed cases[] = {{"1", 1},    {"10", 10}, {"0", -1}, {"11", -1},
                            {"1.5", -1}, {"2K", -1}, {"2.0", 2}};
    expect_parsed(kInteger, cases);
    Setting setting;
    EXPECT_EQ(parse_value(kReal, "-0.25", setting), "");
    EXPECT_EQ(setting.real, -0.25);
    EXPECT_EQ(parse_value(kReal, ".5", setting), "");
    EXPECT_EQ(setting.real, 0.5);
    EXPECT_THAT(parse_value(kReal, "1.01", setting), HasSubstr("-1..1"));
    EXPECT_EQ(setting.real, 0.5) << "a wrong value changes nothing";
}

TEST(ParseValue, DoesNotDependOnTheLocale) {
    const char* found = nullptr;
    for (const char* name : {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8"}) {
        found = found != nullptr ? found : ::setlocale(LC_ALL, name);
    }
    if (found == nullptr) {
        GTEST_SKIP() << "no locale with a decimal comma is installed";
    }
    Setting setting;
    EXPECT_EQ(parse_value(kReal, "0.5", setting), "");
    EXPECT_NE(parse_value(kReal, "0,5", setting), "");
    EXPECT_EQ(parse_value(kTime, "1.5s", setting), "");
    EXPECT_EQ(setting.integer, 1500000000);
    ::setlocale(LC_ALL, "C");
}

TEST(ExpandPattern, ReplacesHostRankAndProcess) {
    char host[256] = "";
    ASSERT_EQ(::gethostname(host, sizeof(host)), 0);
    const std::string pid = std::to_string(::getpid());
    EXPECT_EQ(expand_pattern("d/%h-%r.%p", 7), std::string("d/") + host + "-7." + pid);
    EXPECT_EQ(expand_pattern("100%% %x %", -1), "100% %x %");
    EXPECT_EQ(expand_pattern("%%r", 3), "%r");
    EXPECT_EQ(expand_pattern("", 3), "");
    EXPECT_EQ(expand_pattern("deft-%j-%r.json", 3, "a/b 7"), "deft-a_b_7-3.json");
    EXPECT_EQ(expand_pattern("deft-%j-%r.json", 3), "deft-3.json");
    EXPECT_EQ(expand_pattern("%j", 3), "");
    EXPECT_EQ(expand_pattern("%j.%r", 3), ".3");
    EXPECT_EQ(expand_pattern("%j", 0, std::string(1000, 'j')), std::string(64, 'j'));
}

}  // namespace
}  // namespace deft
