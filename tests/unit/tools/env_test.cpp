// SPDX-License-Identifier: Apache-2.0
// Every variable of the table is shown everywhere, with everything the table says about it.
#include "tools/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tools/environment.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

Config config(std::vector<const char*> environment) {
    return Config::load(environment, "/nonexistent");
}

TEST(EnvOutput, TheSampleFileChangesNothingAndIsRightWithoutItsMarks) {
    const std::string path = testing::TempDir() + "deft-sample.conf";
    std::string text = sample_conf();
    for (const bool marked : {true, false}) {
        std::ofstream(path) << text;
        const Config loaded = Config::load({}, path);
        EXPECT_EQ(loaded.central_problem(), "");
        for (const Variable& row : variables()) {
            const Setting& setting = loaded.setting(row.key);
            EXPECT_EQ(setting.text, row.default_text) << row.name;
            EXPECT_TRUE(!marked || setting.source == ValueSource::Default) << row.name;
        }
        EXPECT_THAT(text, HasSubstr("DEFT_LINK_TIMEOUT="));
        for (auto at = text.find("\n#DEFT_"); at != text.npos; at = text.find("\n#DEFT_")) {
            text.erase(at + 1, 1);
        }
    }
    std::remove(path.c_str());
}

TEST(EnvOutput, EveryFormIsComplete) {
    const std::string human = human_settings(config({}));
    const std::string markdown = markdown_reference();
    const std::string man = man_page();
    const json document = json::parse(json_settings(config({})));
    ASSERT_EQ(document["variables"].size(), variables().size());
    std::size_t index = 0;
    for (const Variable& row : variables()) {
        EXPECT_THAT(human, HasSubstr(std::string(row.name) + "="));
        EXPECT_THAT(human, HasSubstr(row.doc));
        EXPECT_THAT(markdown, HasSubstr("\n### `" + std::string(row.name) + "`\n"));
        EXPECT_THAT(man, HasSubstr(".B " + std::string(row.name) + "\n"));
        const json& shown = document["variables"][index++];
        EXPECT_EQ(shown["name"], row.name);
        EXPECT_EQ(shown["value"], row.default_text);
        EXPECT_EQ(shown["default"], row.default_text);
        EXPECT_EQ(shown["doc"], row.doc);
        EXPECT_EQ(shown["since"], row.since);
        EXPECT_EQ(shown["source"], "default");
    }
}

TEST(EnvOutput, TheReferencePageIsWrapped) {
    std::istringstream page(markdown_reference());
    for (std::string line; std::getline(page, line);) {
        EXPECT_LE(line.size(), 100u) << line;
        EXPECT_THAT(line, Not(EndsWith(" ")));
    }
}

TEST(EnvOutput, SaysWhereAValueComesFromAndWhatIsWrong) {
    const Config loaded = config({"DEFT_LOG=info", "DEFT_MODE=fast", "DEFT_MOED=1"});
    const std::string human = human_settings(loaded);
    EXPECT_THAT(human, HasSubstr("DEFT_LOG=info   [environment]"));
    EXPECT_THAT(human, HasSubstr("problem: DEFT_MODE='fast' (environment)"));
    EXPECT_THAT(human, HasSubstr("warning: unknown variable DEFT_MOED"));
    const json document = json::parse(json_settings(loaded));
    EXPECT_EQ(document["problems"].size(), 1u);
    EXPECT_EQ(document["warnings"].size(), 1u);
}

TEST(EnvOutput, SurvivesValuesThatAreNotText) {
    const Config loaded = config({"DEFT_INTERFACES=\xff\xfe\x1b[2J"});
    EXPECT_NO_THROW({ EXPECT_TRUE(json::parse(json_settings(loaded)).is_object()); });
    EXPECT_EQ(human_settings(loaded).find('\x1b'), std::string::npos);
}

TEST(EnvOutput, ManPageHasNoBrokenRequests) {
    std::string line;
    for (const char c : man_page()) {
        if (c != '\n') {
            line += c;
            continue;
        }
        EXPECT_FALSE(line.starts_with("'")) << line;
        EXPECT_FALSE(line.empty());
        line.clear();
    }
}

}  // namespace
}  // namespace deft::tools
