// SPDX-License-Identifier: Apache-2.0
// Releases of the plugin that speak version 2 and 3 in one job. The bytes below were made by the
// last commit that spoke version 2 alone (d1c1c9d6b7); they are never made anew.
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include "plugin/tcp/wire.h"

namespace deft::net::wire {
namespace {

constexpr std::string_view kOldHandle =
    "44454654020002020700000000000000000102030405060708090a0b0c0d0e0f0000000000000000ffffffff"
    "000000000400409c0a0000010601419cfd000000000000000000000000000001";
constexpr std::string_view kOldHello =
    "4448454c020080000700000000000000000102030405060708090a0b0c0d0e0f887766554433221103000000"
    "01000200ffffffff102700000102000065746831000000000000000000000000000000000000000000000000"
    "000000000400409c0a00000100000000000000000000000000000000000000000000000028ddeaf6";
// Zeros follow, and the checksum.
constexpr std::string_view kOldWelcome =
    "4457454c0200c00200000200a8610000040000000000000009000000000000000400409c0a0000010601419c"
    "fd000000000000000000000000000001";
constexpr std::string_view kOldWelcomeEnd = "0e0c56bd";

template <std::size_t N>
void put_hex(std::array<std::byte, N>& bytes, std::size_t at, std::string_view text) {
    for (std::size_t i = 0; i < text.size() / 2; ++i) {
        bytes[at + i] =
            static_cast<std::byte>(std::stoi(std::string(text.substr(2 * i, 2)), nullptr, 16));
    }
}

template <std::size_t N>
std::array<std::byte, N> old_bytes(std::string_view text, std::string_view end = "") {
    std::array<std::byte, N> bytes{};
    put_hex(bytes, 0, text);
    put_hex(bytes, N - end.size() / 2, end);
    return bytes;
}

TEST(WireVersions, AnOlderHandleIsSpokenToInItsVersion) {
    Handle handle;
    ASSERT_EQ(decode(old_bytes<kHandleBytes>(kOldHandle), handle), Decoded::Ok);
    EXPECT_EQ(handle.version, 2);
    EXPECT_EQ(handle.newest, 2);
    EXPECT_EQ(common_version(handle), 2);
    EXPECT_EQ(handle.listener, 7U);
    ASSERT_EQ(handle.endpoints.count, 2U);
    EXPECT_EQ(handle.endpoints.entries[1].port, 40001);
}

// It demands its own version, which is the oldest that our listeners speak.
TEST(WireVersions, AnOlderReleaseReadsOurHandle) {
    Handle old;
    ASSERT_EQ(decode(old_bytes<kHandleBytes>(kOldHandle), old), Decoded::Ok);
    Handle ours;
    ours.listener = old.listener;
    ours.secret = old.secret;
    ours.total = old.total;
    ours.endpoints = old.endpoints;
    std::array<std::byte, kHandleBytes> bytes;
    encode(ours, bytes);
    // All but what it never looked at: bytes 40 to 43.
    std::memset(bytes.data() + 40, 0xff, 4);
    EXPECT_EQ(bytes, old_bytes<kHandleBytes>(kOldHandle));
}

TEST(WireVersions, HelloAndWelcomeOfVersionTwoAreAsEver) {
    Hello hello;
    ASSERT_EQ(decode(old_bytes<kHelloBytes>(kOldHello), hello), Decoded::Ok);
    EXPECT_EQ(hello.version, 2);
    EXPECT_STREQ(hello.link, "eth1");
    std::array<std::byte, kHelloBytes> hello_bytes;
    encode(hello, hello_bytes);
    EXPECT_EQ(hello_bytes, old_bytes<kHelloBytes>(kOldHello));

    const auto old = old_bytes<kWelcomeBytes>(kOldWelcome, kOldWelcomeEnd);
    Welcome welcome;
    ASSERT_EQ(decode(old, welcome), Decoded::Ok);
    EXPECT_EQ(welcome.version, 2);
    EXPECT_EQ(welcome.posted, 9U);
    std::array<std::byte, kWelcomeBytes> welcome_bytes;
    encode(welcome, welcome_bytes);
    EXPECT_EQ(welcome_bytes, old);
}

TEST(WireVersions, TheNewestThatBothSpeakCounts) {
    const auto common = [](std::uint16_t oldest, std::uint16_t newest) {
        Handle handle;
        handle.version = oldest;
        handle.newest = newest;
        handle.total = 1;
        handle.endpoints.count = 1;
        handle.endpoints.entries[0].address.family = AF_INET;
        std::array<std::byte, kHandleBytes> bytes;
        encode(handle, bytes);
        Handle back;
        const Decoded decoded = decode(bytes, back);
        EXPECT_EQ(decoded, common_version(back) != 0 ? Decoded::Ok : Decoded::WrongVersion);
        return common_version(back);
    };
    EXPECT_EQ(common(2, 2), 2);
    EXPECT_EQ(common(kOldestVersion, kVersion), kVersion);
    EXPECT_EQ(common(kVersion, kVersion + 1), kVersion);  // the next release
    EXPECT_EQ(common(kVersion + 1, kVersion + 2), 0);     // two releases on
    EXPECT_EQ(common(1, 1), 0);
    EXPECT_EQ(common(0, 0), 0);
    EXPECT_EQ(common(1, 9), kVersion);
}

}  // namespace
}  // namespace deft::net::wire
