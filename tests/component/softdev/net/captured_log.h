// SPDX-License-Identifier: Apache-2.0
// Collects what the loader and Socket say, and what the checking plugin wrote.
#pragma once

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "softdev/net/logger.h"

class CapturedLog {
public:
    CapturedLog() {
        lines().clear();
        softdev::net::set_logger(keep);
    }
    ~CapturedLog() { softdev::net::set_logger(nullptr); }

    std::vector<std::string> warnings() const {
        const std::lock_guard<std::mutex> lock(mutex());
        return lines();
    }

private:
    static std::mutex& mutex() {
        static std::mutex one;
        return one;
    }
    static std::vector<std::string>& lines() {
        static std::vector<std::string> all;
        return all;
    }
    static void keep(int level, unsigned long, const char*, int, const char* format, ...) {
        if (level != DEFT_NET_LOG_WARN) {
            return;
        }
        char line[1024];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(line, sizeof line, format, arguments);
        va_end(arguments);
        const std::lock_guard<std::mutex> lock(mutex());
        lines().push_back(line);
    }
};

// The file SOFTNET_CHECK_LOG names, without process ids.
class PluginLog {
public:
    PluginLog() : path_(testing::TempDir() + "softnet-" + std::to_string(getpid()) + ".log") {
        std::remove(path_.c_str());
    }
    ~PluginLog() { std::remove(path_.c_str()); }
    const std::string& path() const { return path_; }
    std::vector<std::string> lines() const {
        std::ifstream file(path_);
        std::vector<std::string> all;
        for (std::string line; std::getline(file, line);) {
            all.push_back(line.substr(line.find(' ') + 1));
        }
        return all;
    }
    size_t count(const std::string& text) const {
        size_t found = 0;
        for (const std::string& line : lines()) {
            found += line.find(text) != std::string::npos;
        }
        return found;
    }

private:
    std::string path_;
};
