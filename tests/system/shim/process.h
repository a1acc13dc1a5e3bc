// SPDX-License-Identifier: Apache-2.0
// Runs a program with a preload and a clean environment, and reads the reports it leaves.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/sanitizers.h"

extern char** environ;

namespace deft::test {

namespace fs = std::filesystem;

inline std::string read_file(const fs::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// A folder that is removed with the object.
class Folder {
public:
    Folder() {
        std::string pattern = (fs::temp_directory_path() / "deft-shim-XXXXXX").string();
        path_ = ::mkdtemp(pattern.data());
    }
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    fs::path operator/(const std::string& name) const { return path_ / name; }
    const fs::path& path() const { return path_; }

private:
    fs::path path_;
};

// A name for a library that LD_PRELOAD can carry: the loader splits the variable at blanks and
// colons, and the build folder's path may hold one. A link to the file then, removed at exit.
inline std::string preloadable(const std::string& library) {
    if (library.find_first_of(" :") == library.npos || library.find(".so:") != library.npos) {
        return library;  // of a list, none has one
    }
    struct Link {
        explicit Link(const fs::path& target) {
            std::string pattern = "/tmp/deft-preload-XXXXXX";
            folder = ::mkdtemp(pattern.data());
            fs::create_symlink(target, folder / target.filename());
        }
        ~Link() {
            std::error_code ignored;
            fs::remove_all(folder, ignored);
        }
        Link(const Link&) = delete;
        fs::path folder;
    };
    static std::map<std::string, Link> links;
    const fs::path target(library);
    return links.try_emplace(library, target).first->second.folder / target.filename();
}

// The same tests again with the guest: it stands for the library wherever that is preloaded.
inline std::string instead(const std::string& library) {
    const char* const guest = std::getenv("TEST_GUEST");
    return guest != nullptr && library == PRELOAD ? guest : library;
}

struct Outcome {
    int status = -1;  // as waitpid gives it
    std::string out;
    std::string err;
    std::map<std::string, nlohmann::json> reports;  // by file name
};

// A program that was started, with its output going to files of `folder`.
struct Started {
    pid_t pid = -1;
    fs::path out;
    fs::path err;
};

using Environment = std::map<std::string, std::string>;

// A program and a preload that are both built with a sanitizer: the preload stands before the run
// time, which the loader resolves from the program all the same. Any finding ends a program with
// an error of its own.
inline void add_sanitizer_options(std::vector<std::string>& environment) {
#if defined(TEST_ADDRESS_SANITIZER)
    const std::string name = "ASAN_OPTIONS=";
    const std::string options = "verify_asan_link_order=0:halt_on_error=1:detect_leaks=1";
#elif defined(TEST_THREAD_SANITIZER)
    const std::string name = "TSAN_OPTIONS=";
    const std::string options = "exitcode=66:second_deadlock_stack=1";
#else
    const std::string name;
    const std::string options;
#endif
    for (std::string& entry : environment) {
        if (!name.empty() && entry.starts_with(name)) {
            entry += ":" + options;
            return;
        }
    }
    if (!name.empty()) {
        environment.push_back(name + options);
    }
}

// What NCCL's own library needs on the software device: see tests/system/realnccl/with_library.sh.
inline std::vector<std::string> nccl_settings() {
    const char* const text = std::getenv("TEST_NCCL_SETTINGS");
    std::istringstream words(text != nullptr ? text : "");
    std::vector<std::string> settings;
    for (std::string word; words >> word;) {
        settings.push_back(word);
    }
    return settings;
}

// The caller's environment without anything of deft's or NCCL's, and with `extra`.
inline Started start(const std::vector<std::string>& command, const Environment& extra,
                     const Folder& folder, const std::string& name = "job") {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text(*entry);
        const std::string key = text.substr(0, text.find('='));
        if (!text.starts_with("DEFT_") && !text.starts_with("NCCL_") && key != "LD_PRELOAD" &&
            extra.count(key) == 0) {
            environment.push_back(text);
        }
    }
    for (const std::string& setting : nccl_settings()) {
        if (extra.count(setting.substr(0, setting.find('='))) == 0) {
            environment.push_back(setting);
        }
    }
    for (const auto& [key, value] : extra) {
        environment.push_back(key + "=" +
                              (key == "LD_PRELOAD" ? preloadable(instead(value)) : value));
    }
    add_sanitizer_options(environment);
    std::vector<char*> argv;
    for (const std::string& word : command) {
        argv.push_back(const_cast<char*>(word.c_str()));
    }
    argv.push_back(nullptr);
    std::vector<char*> envp;
    for (const std::string& entry : environment) {
        envp.push_back(const_cast<char*>(entry.c_str()));
    }
    envp.push_back(nullptr);
    Started started;
    started.out = folder / (name + ".out");
    started.err = folder / (name + ".err");
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, started.out.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::posix_spawn_file_actions_addopen(&actions, 2, started.err.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (::posix_spawn(&started.pid, argv[0], &actions, nullptr, argv.data(), envp.data()) != 0) {
        // To kill(2) the number -1 is every process of the user.
        std::fprintf(stderr, "%s cannot be started: is it built?\n", argv[0]);
        std::exit(1);
    }
    ::posix_spawn_file_actions_destroy(&actions);
    return started;
}

inline Outcome finish(const Started& started, const Folder& folder) {
    Outcome outcome;
    if (started.pid > 0) {
        ::waitpid(started.pid, &outcome.status, 0);
    }
    outcome.out = read_file(started.out);
    outcome.err = read_file(started.err);
    for (const auto& entry : fs::directory_iterator(folder.path())) {
        if (entry.path().extension() == ".json") {
            outcome.reports[entry.path().filename()] =
                nlohmann::json::parse(read_file(entry.path()), nullptr, false);
        }
    }
    return outcome;
}

// Runs to the end. With a preload, reports go to `folder`.
inline Outcome run(const std::vector<std::string>& command, Environment extra = {}) {
    const Folder folder;
    if (extra.count("DEFT_OUT") == 0) {
        extra["DEFT_OUT"] = folder / "rank%r.json";
    }
    return finish(start(command, extra, folder), folder);
}

inline std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) {
        ++found;
    }
    return found;
}

}  // namespace deft::test
