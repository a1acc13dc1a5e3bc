// SPDX-License-Identifier: Apache-2.0
// Files of observed jobs are read, or refused with the place that is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <fstream>
#include <stdexcept>

#include "tests/unit/tools/observed_document.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::string error_of(const std::string& text) {
    try {
        parse_observe_file("f.json", text);
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "accepted";
}

TEST(ObserveFileTest, ReadsEverythingTheReportShows) {
    const ObserveFile file = parsed(document(1, 4));
    EXPECT_EQ(file.rank, 1);
    EXPECT_EQ(file.ranks, 4);
    EXPECT_EQ(file.nccl_version, 22809);
    EXPECT_EQ(file.all_calls(), 100);
    EXPECT_EQ(file.plugin_abi, 11);
    EXPECT_TRUE(file.stable);
    EXPECT_EQ(file.time_ms.median, 200);
    ASSERT_EQ(file.buckets.size(), 2u);
    EXPECT_EQ(file.buckets[1].bytes, 23987200);
    EXPECT_EQ(file.buckets[1].transfer_ms.median, std::nullopt) << "null is: not measured";
    ASSERT_EQ(file.links.size(), 1u);
    EXPECT_EQ(file.links[0].speed_mbps, 2000);
}

TEST(ObserveFileTest, AFileHasTheRecordsOfAHost) {
    const std::string first = document(0, 2).dump();
    const std::string second = document(1, 2).dump();
    EXPECT_THAT(records_in(first + "\n" + second + "\n"), ElementsAre(first, second));
    EXPECT_THAT(records_in(first), ElementsAre(first));
    const std::string pretty = document(0, 1).dump(1);
    EXPECT_THAT(records_in(pretty), ElementsAre(pretty));
    const std::string cut = first + "\n" + second.substr(0, second.size() - 1);
    EXPECT_THAT(records_in(cut), ElementsAre(first, second.substr(0, second.size() - 1)));
    EXPECT_THAT(records_in(""), ElementsAre(""));
    const std::string path = ::testing::TempDir() + "deft-records.json";
    std::ofstream(path) << first << "\n" << second << "\n";
    std::vector<std::string> problems;
    const std::vector<ObserveFile> files = read_observe_files(path, problems);
    EXPECT_THAT(problems, IsEmpty());
    ASSERT_EQ(files.size(), 2U);
    EXPECT_EQ(files[1].rank, 1);
    EXPECT_EQ(files[1].path, path + ", record 2");
    ::unlink(path.c_str());
    EXPECT_THAT(read_observe_files(path, problems), IsEmpty());
    EXPECT_THAT(problems, ElementsAre(HasSubstr(path)));
}

TEST(ObserveFileTest, ARecordThatCannotBeReadHidesNoOther) {
    const std::string path = ::testing::TempDir() + "deft-records-cut.json";
    const std::string second = document(1, 2).dump();
    std::ofstream(path) << document(0, 2).dump().substr(0, 100) << "\n" << second << "\n";
    std::vector<std::string> problems;
    const std::vector<ObserveFile> files = read_observe_files(path, problems);
    EXPECT_THAT(problems, ElementsAre(StartsWith(path + ", record 1:")));
    ASSERT_EQ(files.size(), 1U);
    EXPECT_EQ(files[0].rank, 1);
    ::unlink(path.c_str());
}

TEST(ObserveFileTest, IgnoresFieldsOfLaterReleases) {
    json text = document(0, 1);
    text["weather"] = {{"wind", 3}};
    text["buckets"][0]["colour"] = "red";
    EXPECT_EQ(parsed(text).buckets.size(), 2u);
}

TEST(ObserveFileTest, SaysWhereTheTextIsNoJson) {
    EXPECT_THAT(error_of("{\n \"format\": \"deft-observe\",\n  oops }"),
                AllOf(StartsWith("f.json: line 3, column 3:"), HasSubstr("not valid JSON")));
    const std::string whole = document(0, 1).dump(1);
    EXPECT_THAT(error_of(whole.substr(0, whole.size() / 2)), HasSubstr("cut off"));
    EXPECT_THAT(error_of(""), HasSubstr("empty"));
    EXPECT_THAT(error_of(" \n\t"), HasSubstr("empty"));
    EXPECT_THAT(error_of(std::string("\0\1\2\xff", 4)), HasSubstr("line 1, column 1"));
    EXPECT_THAT(error_of(R"({"format":"deft-observe","version":1e999})"),
                StartsWith("f.json: version is a number out of range"));
    EXPECT_THAT(error_of(R"({"buckets":[{},{"ready_ms":{"median":-1e999}}]})"),
                StartsWith("f.json: buckets[1].ready_ms.median is a number out of range"));
    EXPECT_THAT(error_of(R"({"format":"deft-observe","rank":1,"rank":0})"),
                StartsWith("f.json: rank is given twice"));
    EXPECT_THAT(error_of(std::string(200000, '[')), HasSubstr("nested more than 64 deep"));
}

TEST(ObserveFileTest, SaysThatSomethingElseIsNoReport) {
    for (const char* text :
         {"[]", "3", "null", "{}", R"({"format":"deft-env"})", R"({"format":7})"}) {
        EXPECT_THAT(error_of(text),
                    AllOf(HasSubstr("not a report of deft"), HasSubstr("DEFT_MODE")))
            << text;
    }
}

TEST(ObserveFileTest, SaysThatAnotherVersionWroteIt) {
    json text = document(0, 1);
    text["version"] = 2;
    EXPECT_THAT(error_of(text.dump()), AllOf(HasSubstr("version 2"), HasSubstr("reads version 1"),
                                             HasSubstr("release that wrote it")));
}

// Every field, one at a time: missing, of another type, negative, absurdly large. The reader either
// copes or names the field; it never lets an exception of the JSON library out.
void spoil(const json& whole, const json::json_pointer& place, const json& node) {
    for (const json& bad : {json("text"), json(-1), json(18446744073709551615u), json(1.5),
                            json(true), json::array({1}), json::object(), json(nullptr)}) {
        json text = whole;
        text[place] = bad;
        const std::string error = error_of(text.dump());
        if (error != "accepted") {
            EXPECT_THAT(error, StartsWith("f.json: ")) << place.to_string() << " " << bad;
            EXPECT_THAT(error, AnyOf(HasSubstr(place.back()), HasSubstr("not a report"),
                                     HasSubstr("is "), HasSubstr("missing")));
            EXPECT_EQ(error.find('\n'), error.npos);
        }
    }
    if (node.is_structured()) {
        for (const auto& [key, value] : node.items()) {
            spoil(whole, place / key, value);
        }
        for (const auto& [key, value] : node.items()) {
            json text = whole;
            text[place].is_object() ? (void)text[place].erase(key) : (void)0;
            const std::string error = error_of(text.dump());
            EXPECT_TRUE(error == "accepted" || error.starts_with("f.json: ")) << error;
        }
    }
}

TEST(ObserveFileTest, NamesTheFieldThatIsWrong) {
    json whole = document(0, 2);
    whole["plans"] = json::array({{{"state", "running"}, {"policy", "deft"}, {"predicted_ms", 1}}});
    for (const auto& [key, value] : whole.items()) {
        spoil(whole, json::json_pointer("/" + key), value);
    }
    json text = whole;
    text["buckets"][1]["bytes"] = "many";
    EXPECT_THAT(error_of(text.dump()), AllOf(HasSubstr("buckets[1].bytes"), HasSubstr("\"many\""),
                                             HasSubstr("a whole number")));
    text = whole;
    text["buckets"][1]["transfer_ms"]["median"] = -5;
    EXPECT_THAT(error_of(text.dump()),
                AllOf(HasSubstr("buckets[1].transfer_ms.median"), HasSubstr("-5")));
    text["buckets"][1]["transfer_ms"]["median"] = 1e300;
    EXPECT_THAT(error_of(text.dump()), HasSubstr("buckets[1].transfer_ms.median is 1e+300"));
    // The host may run ahead of the iteration's origin.
    text = whole;
    text["buckets"][1]["ready_ms"]["p10"] = -5;
    EXPECT_EQ(error_of(text.dump()), "accepted");
    text = whole;
    text["plugin"].erase("loaded");
    EXPECT_THAT(error_of(text.dump()), HasSubstr("plugin.loaded is missing"));
    text = whole;
    text["rank"] = 2;
    EXPECT_THAT(error_of(text.dump()), HasSubstr("rank 2 of 2"));
}

}  // namespace
}  // namespace deft::tools
