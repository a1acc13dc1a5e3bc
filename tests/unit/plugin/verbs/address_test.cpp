// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>

#include "plugin/verbs/queue_pair.h"

namespace deft::net {
namespace {

TEST(VerbsAddressBytes, KeepEveryField) {
    VerbsAddress address;
    address.qp = 0xabcdef;
    address.lid = 77;
    address.mtu = DEFT_VERBS_MTU_4096;
    address.layer = DEFT_VERBS_LINK_LAYER_ETHERNET;
    address.gid.raw[15] = 9;
    address.ece = {0x15b3, 0x80000001, 3};
    std::array<std::byte, kVerbsAddressBytes> bytes;
    encode(address, bytes);
    VerbsAddress read;
    ASSERT_TRUE(decode(bytes, read));
    EXPECT_EQ(read.qp, address.qp);
    EXPECT_EQ(read.lid, address.lid);
    EXPECT_EQ(read.mtu, address.mtu);
    EXPECT_EQ(read.layer, address.layer);
    EXPECT_EQ(read.gid.raw[15], 9);
    EXPECT_EQ(read.ece.vendor_id, address.ece.vendor_id);
    EXPECT_EQ(read.ece.options, address.ece.options);
    EXPECT_EQ(read.ece.comp_mask, address.ece.comp_mask);
    bytes[7] = std::byte{1};  // a number of 25 bits
    EXPECT_FALSE(decode(bytes, read));
    encode(address, bytes);
    bytes[0] ^= std::byte{1};
    EXPECT_FALSE(decode(bytes, read));
}

}  // namespace
}  // namespace deft::net
