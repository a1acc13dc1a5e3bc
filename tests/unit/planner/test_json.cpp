// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gtest/gtest.h>

namespace deft::planner {
namespace {

TEST(Json, ReadsWhatItWrites) {
    const char* text =
        R"({"a":[1,-2.5,1e300,18446744073709551615],"b":{"c":null,"d":[true,false]},"e":"x\"\\\u0001"})";
    EXPECT_EQ(Json::parse(text).dump(), text);
}

TEST(Json, KeepsSixtyFourBits) {
    const Json json = Json::parse("[18446744073709551615,-9223372036854775808]");
    EXPECT_EQ(json.as_array("")[0].as_unsigned(""), 18446744073709551615ULL);
    EXPECT_EQ(json.as_array("")[1].as_signed(""), INT64_MIN);
}

TEST(Json, DecodesEscapes) {
    EXPECT_EQ(Json::parse(R"("\u00e9\ud83d\ude00\n\/")").as_text(""),
              "\xc3\xa9\xf0\x9f\x98\x80\n/");
}

TEST(Json, RefusesWhatIsNotJson) {
    for (const char* text :
         {"",        "{",           "[1,]",     "{\"a\":1,}", "01",
          "1.",      ".5",          "+1",       "nul",        "\"\x01\"",
          "\"\\x\"", "\"\\ud800\"", "\"open",   "[1] 2",      "{\"a\":1,\"a\":2}",
          "{1:2}",   "NaN",         "Infinity", "'a'",        "-",
          "1e",      "[1 2]"}) {
        EXPECT_THROW(Json::parse(text), JsonError) << text;
    }
    EXPECT_THROW(Json::parse(std::string(100000, '[')), JsonError);
}

TEST(Json, NumbersOutOfRangeAreNamed) {
    const Json json = Json::parse("[1e999,256,-1,1.5]");
    const auto& items = json.as_array("");
    EXPECT_THROW(items[0].as_double("x"), JsonError);
    EXPECT_THROW(items[1].as_unsigned("x", 255), JsonError);
    EXPECT_THROW(items[2].as_unsigned("x"), JsonError);
    EXPECT_THROW(items[3].as_signed("x"), JsonError);
}

}  // namespace
}  // namespace deft::planner
