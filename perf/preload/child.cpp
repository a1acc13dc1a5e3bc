// SPDX-License-Identifier: Apache-2.0
#include "perf/preload/child.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

extern "C" char** environ;

namespace deft::hook_cost {

PreloadName::PreloadName(const std::string& library)
    : text_(std::filesystem::absolute(library).string()) {
    constexpr const char* kSplits = " :;$\t\n";
    if (text_.find_first_of(kSplits) == text_.npos) {
        return;
    }
    std::error_code error;
    folder_ = (std::filesystem::temp_directory_path(error) / "deft-perf-XXXXXX").string();
    if (error || folder_.find_first_of(kSplits) != folder_.npos) {
        folder_ = "/tmp/deft-perf-XXXXXX";
    }
    if (::mkdtemp(folder_.data()) == nullptr) {
        std::fprintf(stderr, "hook_cost: cannot make %s: %s\n", folder_.c_str(),
                     std::strerror(errno));
        std::exit(1);
    }
    const std::filesystem::path file(text_);
    const std::filesystem::path folder(folder_);
    // The guest looks for the library next to itself.
    for (const auto& name : {file.filename(), std::filesystem::path("libnccl-net-deft.so")}) {
        std::filesystem::create_symlink(file.parent_path() / name, folder / name, error);
    }
    text_ = (folder / file.filename()).string();
}

PreloadName::~PreloadName() {
    std::error_code ignored;
    if (!folder_.empty()) {
        std::filesystem::remove_all(folder_, ignored);
    }
}

Child start(const std::string& library, const std::string& mode,
            const std::map<std::string, std::string>& settings,
            const std::vector<std::string>& arguments, int extra) {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        if (std::strncmp(*entry, "DEFT_", 5) != 0 && std::strncmp(*entry, "LD_PRELOAD=", 11) != 0) {
            environment.emplace_back(*entry);
        }
    }
    if (!mode.empty()) {
        environment.push_back("LD_PRELOAD=" + library);
        environment.push_back("DEFT_MODE=" + mode);
        environment.push_back("DEFT_LOG=none");
        for (const auto& [name, value] : settings) {
            environment.push_back(name + "=" + value);
        }
    }
    std::vector<char*> envp;
    for (std::string& entry : environment) {
        envp.push_back(entry.data());
    }
    envp.push_back(nullptr);
    std::string self = "/proc/self/exe";
    std::vector<std::string> words = arguments;
    std::vector<char*> argv{self.data()};
    for (std::string& word : words) {
        argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        std::perror("hook_cost: pipe");
        std::exit(1);
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    if (extra >= 0) {
        ::posix_spawn_file_actions_adddup2(&actions, extra, 3);
    }
    Child child;
    const int error =
        ::posix_spawn(&child.pid, self.c_str(), &actions, nullptr, argv.data(), envp.data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error != 0) {
        std::fprintf(stderr, "hook_cost: cannot start a child: %s\n", std::strerror(error));
        std::exit(1);
    }
    child.output = ends[0];
    return child;
}

bool finish(Child& child, std::string& output) {
    char text[512];
    for (ssize_t got = 0; (got = ::read(child.output, text, sizeof(text))) > 0;) {
        output.append(text, static_cast<std::size_t>(got));
    }
    ::close(child.output);
    int status = -1;
    return ::waitpid(child.pid, &status, 0) == child.pid && status == 0;
}

// The loader ignores a preload that it cannot find: what a hook adds would be nothing.
bool preloaded() {
    if (std::getenv("DEFT_MODE") == nullptr || ::dlsym(RTLD_DEFAULT, "deft_version") != nullptr) {
        return true;
    }
    std::fprintf(stderr, "hook_cost: LD_PRELOAD='%s' is not in the process\n",
                 std::getenv("LD_PRELOAD"));
    return false;
}

}  // namespace deft::hook_cost
