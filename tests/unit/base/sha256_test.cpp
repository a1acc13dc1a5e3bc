// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace deft {
namespace {

std::span<const std::byte> bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
}

std::string hex(const Sha256Digest& digest) {
    std::string out;
    for (const std::byte byte : digest) {
        char digits[3];
        (void)std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(byte));
        out += digits;
    }
    return out;
}

std::string hash(const std::string& text) {
    Sha256 sha;
    sha.add(bytes(text));
    return hex(sha.finish());
}

// The first two and their like: FIPS 180-4's examples. The others end before, at and behind the
// place of the length in a block.
TEST(Sha256, KnownDigests) {
    EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(hash(std::string(55, 'a')),
              "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    EXPECT_EQ(hash(std::string(56, 'a')),
              "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
    EXPECT_EQ(hash(std::string(64, 'a')),
              "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
    EXPECT_EQ(hash(std::string(1000, 'a')),
              "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

TEST(Sha256, IsTheSameInPieces) {
    const std::string text(300, 'x');
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        Sha256 sha;
        sha.add(bytes(text).first(cut));
        sha.add(bytes(text).subspan(cut));
        EXPECT_EQ(hex(sha.finish()), hash(text)) << cut;
    }
}

// RFC 4231, cases 1 and 6.
TEST(HmacSha256, KnownCodes) {
    EXPECT_EQ(hex(HmacSha256(bytes(std::string(20, '\x0b'))).of(bytes("Hi "), bytes("There"))),
              "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    EXPECT_EQ(hex(HmacSha256(bytes(std::string(131, '\xaa')))
                      .of(bytes("Test Using Larger Than Block-Size Key - Hash Key First"), {})),
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(ConstantTime, TellsWhatDiffers) {
    EXPECT_TRUE(equal_in_constant_time(bytes("same"), bytes("same")));
    EXPECT_FALSE(equal_in_constant_time(bytes("same"), bytes("sane")));
    EXPECT_FALSE(equal_in_constant_time(bytes("same"), bytes("samf")));
    EXPECT_FALSE(equal_in_constant_time(bytes(""), bytes("x")));
}

}  // namespace
}  // namespace deft
