// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>

#include "tests/unit/base/config_fixture.h"

namespace deft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(ConfigTest, EveryDefaultIsValidAndEveryRowIsComplete) {
    for (const Variable& row : variables()) {
        SCOPED_TRACE(row.name);
        Setting setting;
        EXPECT_EQ(parse_value(row, row.default_text, setting), "");
        EXPECT_THAT(row.name, testing::MatchesRegex("DEFT_[A-Z0-9_]+"));
        EXPECT_THAT(std::string(row.doc), testing::Not(IsEmpty()));
        EXPECT_THAT(row.since, testing::MatchesRegex("[0-9]+\\.[0-9]+"));
        EXPECT_EQ(&variable(row.key), &row);
        const bool has_range = row.range[0] != '\0';
        EXPECT_EQ(has_range, row.type != ValueType::Bool && row.type != ValueType::Text)
            << "choices and numbers state what is allowed, nothing else does";
        int same_name = 0;
        for (const Variable& other : variables()) {
            same_name += std::string_view(row.name) == other.name;
        }
        EXPECT_EQ(same_name, 1);
    }
}

TEST_F(ConfigTest, AnEmptyEnvironmentGivesDefaults) {
    const Config config = load({});
    EXPECT_THAT(config.problems(), IsEmpty());
    EXPECT_THAT(config.warnings(), IsEmpty());
    for (const Variable& row : variables()) {
        EXPECT_EQ(config.text(row.key), row.default_text);
        EXPECT_EQ(config.setting(row.key).source, ValueSource::Default);
        EXPECT_EQ(config.setting(row.key).origin, "default");
    }
}

TEST_F(ConfigTest, EnvironmentBeatsUserFileBeatsSystemFileBeatsDefault) {
    const std::string system = file("system", "DEFT_OUT=s\nDEFT_LOG=info\nDEFT_LINK_TIMEOUT=1s\n");
    const std::string user = file("user", "\n# words\nDEFT_LOG = debug\nDEFT_LINK_TIMEOUT=2s\n");
    const Config config = load({"DEFT_LINK_TIMEOUT=3s", "DEFT_CONF=" + user}, system);
    EXPECT_THAT(config.problems(), IsEmpty());
    EXPECT_EQ(config.duration(Key::LinkTimeout), std::chrono::seconds(3));
    EXPECT_EQ(config.setting(Key::LinkTimeout).origin, "environment");
    EXPECT_TRUE(config.is(Key::Log, "debug"));
    EXPECT_EQ(config.setting(Key::Log).source, ValueSource::UserFile);
    EXPECT_EQ(config.setting(Key::Log).origin, user + ":3");
    EXPECT_EQ(config.text(Key::Out), "s");
    EXPECT_EQ(config.setting(Key::Out).source, ValueSource::SystemFile);
    EXPECT_EQ(config.setting(Key::Mode).source, ValueSource::Default);
}

TEST_F(ConfigTest, AWrongValueNamesVariableValueOriginAndWhatIsAllowed) {
    const std::string user = file("user", "DEFT_LINK_TIMEOUT=2 s\n");
    const Config config = load({"DEFT_MODE=obsevre", "DEFT_REQUIRE=yes", "DEFT_CONF=" + user});
    EXPECT_THAT(config.problems(),
                ElementsAre(AllOf(HasSubstr("DEFT_LINK_TIMEOUT='2 s'"), HasSubstr(user + ":1"),
                                  HasSubstr("100ms..1h")),
                            AllOf(HasSubstr("DEFT_MODE='obsevre'"), HasSubstr("environment"),
                                  HasSubstr("off|observe"), HasSubstr("did you mean observe?")),
                            AllOf(HasSubstr("DEFT_REQUIRE='yes'"), HasSubstr("0 or 1"))));
    EXPECT_EQ(config.text(Key::Mode), variable(Key::Mode).default_text);
    EXPECT_FALSE(config.flag(Key::Require));
}

TEST_F(ConfigTest, AnUnknownVariableIsAWarningWithTheNearestName) {
    const Config config = load({"DEFT_MOED=off", "DEFT_XYZZY_PLUGH=1", "NCCL_DEBUG=INFO", "DEFT"});
    EXPECT_THAT(config.problems(), IsEmpty());
    EXPECT_THAT(config.warnings(),
                ElementsAre(AllOf(HasSubstr("DEFT_MOED"), HasSubstr("did you mean DEFT_MODE?")),
                            AllOf(HasSubstr("DEFT_XYZZY_PLUGH"), HasSubstr("deft env"))));
}

TEST_F(ConfigTest, ADuplicateInTheEnvironmentCountsWhereGetenvFindsIt) {
    const Config config = load({"DEFT_LOG=info", "DEFT_LOG=nonsense"});
    EXPECT_TRUE(config.is(Key::Log, "info"));
    EXPECT_THAT(config.problems(), IsEmpty());
}

TEST_F(ConfigTest, AnEmptyValueMeansNotSet) {
    const Config config = load({"DEFT_OUT=", "DEFT_PREDICT=", "DEFT_TCP_CONGESTION=", "DEFT_LOG="});
    EXPECT_THAT(config.problems(), IsEmpty());
    EXPECT_EQ(config.text(Key::Out), "deft-%j-%h.json");
    EXPECT_EQ(config.setting(Key::Out).source, ValueSource::Default);
    EXPECT_EQ(config.setting(Key::Out).origin, "default");
    EXPECT_EQ(config.text(Key::Predict), "auto");
    EXPECT_EQ(config.text(Key::TcpCongestion), "auto");
}

TEST_F(ConfigTest, AnEmptyTextTakesBackWhatAFileSays) {
    const std::string user = file("user", "DEFT_INTERFACES=eth0\nDEFT_LOG=info\n");
    const Config config = load({"DEFT_LOG=", "DEFT_INTERFACES=", "DEFT_CONF=" + user});
    EXPECT_THAT(config.problems(), IsEmpty());
    EXPECT_TRUE(config.is(Key::Log, "info"));
    EXPECT_EQ(config.text(Key::Interfaces), "");
}

TEST_F(ConfigTest, ReadsFilesAsPeopleWriteThem) {
    const std::string path =
        file("user",
             "\xEF\xBB\xBF  # a comment\r\n\r\n\tDEFT_LOG =\tinfo \r\nDEFT_OUT=\"a b.json\"\r\n"
             "DEFT_LINK_TIMEOUT=5s");
    const Config config = load({"DEFT_CONF=" + path});
    EXPECT_THAT(config.problems(), IsEmpty());
    EXPECT_TRUE(config.is(Key::Log, "info"));
    EXPECT_EQ(config.text(Key::Out), "a b.json");
    EXPECT_EQ(config.duration(Key::LinkTimeout), std::chrono::seconds(5));
}

TEST_F(ConfigTest, AMissingUserFileIsAProblemAndAMissingSystemFileIsNot) {
    EXPECT_THAT(load({}, folder_ + "/absent").problems(), IsEmpty());
    ASSERT_EQ(::symlink("/nowhere/deft.conf", (folder_ + "/dangling").c_str()), 0);
    EXPECT_THAT(load({}, folder_ + "/dangling").central_problem(), HasSubstr("dangling"));
    EXPECT_THAT(load({"DEFT_CONF=" + folder_ + "/absent"}).problems(),
                ElementsAre(AllOf(HasSubstr(folder_ + "/absent"), HasSubstr("DEFT_CONF"),
                                  HasSubstr("No such file"))));
    EXPECT_THAT(load({"DEFT_CONF="}).problems(), IsEmpty());
}

TEST_F(ConfigTest, WhatIsNoConfigurationFileIsOneProblem) {
    const std::string fifo = folder_ + "/fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    EXPECT_THAT(load({"DEFT_CONF=" + folder_}).problems(),
                ElementsAre(HasSubstr("not a regular file")));
    EXPECT_THAT(load({"DEFT_CONF=" + fifo}).problems(),
                ElementsAre(HasSubstr("not a regular file")));
    EXPECT_THAT(load({"DEFT_CONF=/dev/zero"}).problems(),
                ElementsAre(HasSubstr("not a regular file")));
    EXPECT_THAT(
        load({"DEFT_CONF=" + file("binary", std::string("DEFT_LOG=info\n\0\1\2", 17))}).problems(),
        ElementsAre(HasSubstr("not a text file")));
    EXPECT_THAT(load({"DEFT_CONF=" + file("huge", std::string(3 << 20, 'x'))}).problems(),
                ElementsAre(HasSubstr("larger than")));
}

TEST_F(ConfigTest, AFileOfAnotherKindDoesNotFloodTheUser) {
    std::string text;
    for (int line = 0; line < 1000; ++line) {
        text += "int main() { return 0; }\n";
    }
    const Config config = load({"DEFT_CONF=" + file("program", text)});
    EXPECT_THAT(config.problems(), SizeIs(6));
    EXPECT_THAT(config.problems().back(), HasSubstr("is it the right file?"));
}

TEST_F(ConfigTest, LinesThatAreNotSettings) {
    const std::string path =
        file("user", "DEFT_LOG info\nexport DEFT_LOG=info\n=info\nDEFT_CONF=/x\n");
    const Config config = load({"DEFT_CONF=" + path});
    EXPECT_THAT(config.problems(),
                ElementsAre(AllOf(HasSubstr(path + ":1"), HasSubstr("NAME=value")),
                            AllOf(HasSubstr(path + ":2"), HasSubstr("NAME=value")),
                            AllOf(HasSubstr(path + ":3"), HasSubstr("NAME=value")),
                            AllOf(HasSubstr(path + ":4"), HasSubstr("environment only"))));
}

TEST_F(ConfigTest, AProblemIsOneShortLineWhateverTheValue) {
    const Config config = load({"DEFT_MODE=a\nb\x1b[31m", "DEFT_LOG=" + std::string(100000, 'x'),
                                "DEFT_" + std::string(100000, 'Y') + "=1"});
    ASSERT_THAT(config.problems(), SizeIs(2));
    ASSERT_THAT(config.warnings(), SizeIs(1));
    for (const std::string& line :
         {config.problems()[0], config.problems()[1], config.warnings()[0]}) {
        EXPECT_LT(line.size(), 400u);
        EXPECT_EQ(line.find_first_of("\n\x1b"), line.npos);
    }
}

}  // namespace
}  // namespace deft
