// SPDX-License-Identifier: Apache-2.0
#include "tools/json_text.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tools/planner/fields.h"
#include "tools/planner/profile_reader.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using Kind = JsonTextError::Kind;

JsonTextError refused(const std::string& text, TraceEventFilter wanted = nullptr) {
    try {
        parse_json_text(text, wanted);
    } catch (const JsonTextError& error) {
        return error;
    }
    ADD_FAILURE() << "accepted: " << text.substr(0, 80);
    return {Kind::Syntax, "accepted", 0, ""};
}

TEST(JsonText, ReadsWhatTheLibraryReads) {
    for (const char* text :
         {"{}", "[]", "0", "\"a\"", "null", "[[],{},[{}]]",
          R"({"a":{"b":[1,-2,3.5e-3,true,null,"\u00e9\n"]},"":{"a":18446744073709551615}})"}) {
        EXPECT_EQ(parse_json_text(text), json::parse(text)) << text;
    }
}

TEST(JsonText, ErrorsKnowTheirField) {
    JsonTextError error = refused(R"({"a":1,"links":[{"n":{}},{"rate":1e999}]})");
    EXPECT_EQ(error.kind, Kind::Range);
    EXPECT_EQ(error.path, "links[1].rate");
    error = refused(R"({"a":[1,2,{"b":oops}]})");
    EXPECT_EQ(error.kind, Kind::Syntax);
    EXPECT_EQ(error.path, "a[2].b");
    EXPECT_EQ(error.byte, 16U);
    EXPECT_EQ(refused("").kind, Kind::Syntax);
    EXPECT_EQ(refused("{} {}").kind, Kind::Syntax);
    error = refused(R"({"a":[{"b":1},{"b":1,"c":{},"b":2}]})");
    EXPECT_EQ(error.kind, Kind::Twice);
    EXPECT_EQ(error.path, "a[1].b");
}

TEST(JsonText, DepthAndSizeAreBounded) {
    EXPECT_EQ(refused(std::string(1000000, '[')).kind, Kind::Limit);
    std::string deep;
    for (int i = 0; i < 100; ++i) {
        deep += R"({"a":)";
    }
    EXPECT_EQ(refused(deep).kind, Kind::Limit);
    std::string many = "[0";
    for (int i = 0; i < 9000000; ++i) {
        many += ",0";
    }
    many += "]";
    const JsonTextError error = refused(many);
    EXPECT_EQ(error.kind, Kind::Limit);
    EXPECT_THAT(error.what(), testing::HasSubstr("more than 8388608 values"));
}

// Events nobody reads leave no trace but their place, and do not count.
TEST(JsonText, UnwantedTraceEventsAreDropped) {
    std::string text = R"({"a":{"traceEvents":[{"x":1}]},"traceEvents":[)";
    const std::string dull = R"({"ph":"X","name":"mm","ph":"X","args":{"a":[1,2,3,4,5,6,7,8,9]}},)";
    for (int i = 0; i < 700000; ++i) {
        text += dull;
    }
    text += R"({"cat":"user_annotation","name":"s"},3],"z":[{"x":2}]})";
    const json document = parse_json_text(text, &trace_event_matters);
    const json& events = document["traceEvents"];
    ASSERT_EQ(events.size(), 700002U);
    EXPECT_TRUE(events[0].is_null());
    EXPECT_EQ(events[700000]["name"], "s");
    EXPECT_EQ(events[700001], 3);
    EXPECT_EQ(document["a"]["traceEvents"][0]["x"], 1);
    EXPECT_EQ(document["z"][0]["x"], 2);
}

// What is complained of is kept.
TEST(JsonText, EventsThatMatter) {
    const auto matters = [](const char* text) { return trace_event_matters(json::parse(text)); };
    EXPECT_TRUE(matters(R"({"cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32"})"));
    EXPECT_TRUE(matters(R"({"cat":"cpu_op","name":"c10d::allreduce_"})"));
    EXPECT_TRUE(matters(R"({"cat":"user_annotation","name":"backward"})"));
    EXPECT_TRUE(matters(R"({"cat":7,"name":"gemm"})"));
    EXPECT_TRUE(matters(R"({"ph":[],"name":"gemm"})"));
    EXPECT_FALSE(matters(R"({"cat":"kernel","name":"gemm"})"));
    EXPECT_FALSE(matters(R"({"cat":"cpu_op","name":"aten::mm"})"));
    EXPECT_FALSE(matters(R"({})"));
    EXPECT_FALSE(matters("3"));
}

class Pipe : public testing::Test {
protected:
    std::filesystem::path folder_ =
        std::filesystem::temp_directory_path() / ("deft-pipe-" + std::to_string(::getpid()));
    void SetUp() override {
        std::filesystem::create_directory(folder_);
        ASSERT_EQ(::mkfifo((folder_ / "p").c_str(), 0600), 0);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(Pipe, IsReadAndWithoutAWriterEmpty) {
    const std::string path = folder_ / "p";
    EXPECT_EQ(read_file(path, 100), "");
    const int keep = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::write(keep, "hello", 5), 5);
    // One byte too many for the limit: nothing waits for the writer to end.
    EXPECT_THROW(read_file(path, 4), InputError);
    ::close(keep);
}

TEST(FileKinds, FoldersAndDevicesAreRefused) {
    EXPECT_THROW(read_file("/", 100), InputError);
    EXPECT_THROW(read_file("/dev/zero", 100), InputError);
    EXPECT_THROW(read_file("/no/such/file", 100), InputError);
}

}  // namespace
}  // namespace deft::tools
