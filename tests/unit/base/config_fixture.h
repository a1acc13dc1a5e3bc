// SPDX-License-Identifier: Apache-2.0
// Loads settings from an environment and from files in a folder of the test's own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/config.h"

namespace deft {

inline constexpr char kNoFile[] = "/nonexistent/deft.conf";

class ConfigTest : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "deft-config-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string file(const std::string& name, const std::string& text) {
        std::string path = folder_ + "/" + name;
        std::ofstream(path, std::ios::binary) << text;
        return path;
    }
    static Config load(const std::vector<std::string>& environment,
                       const std::string& system_file = kNoFile, TextCheck check = nullptr) {
        std::vector<const char*> entries;
        for (const std::string& entry : environment) {
            entries.push_back(entry.c_str());
        }
        return Config::load(entries, system_file, check);
    }

    std::string folder_;
};

}  // namespace deft
