// SPDX-License-Identifier: Apache-2.0
// How processes end: work left behind, threads left behind, forked children. Each case is a process
// of its own (process_child), because what is tested is its exit.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

// The exit status as a shell gives it; 124 when it does not end within a minute.
int run(const char* what, std::vector<std::string> extra_environment = {}) {
    std::vector<std::string> text;
    for (char** e = environ; *e != nullptr; ++e) {
        text.emplace_back(*e);
    }
    text.insert(text.begin(), extra_environment.begin(), extra_environment.end());
    std::vector<char*> environment;
    for (std::string& line : text) {
        environment.push_back(line.data());
    }
    environment.push_back(nullptr);
    std::string program = PROCESS_CHILD;
    std::string argument = what;
    char* arguments[] = {program.data(), argument.data(), nullptr};
    pid_t pid = 0;
    if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environment.data()) != 0) {
        return 127;
    }
    int status = 0;
    for (int i = 0; i < 6000; ++i) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return 124;
}

TEST(Process, EndsWithHostFunctionsQueuedAndOneStuck) {
    EXPECT_EQ(run("leak"), 0);
}
TEST(Process, EndsWithAThreadStillWaiting) {
    EXPECT_EQ(run("waiting"), 0);
}
TEST(Process, EndsThroughStaticDestructorsThatCall) {
    EXPECT_EQ(run("static"), 0);
}
TEST(Process, AForkedChildEndsNormallyAndMayNotUseTheDevice) {
    EXPECT_EQ(run("fork"), 0);
}
TEST(Process, AChildForkedBeforeInitMayUseIt) {
    EXPECT_EQ(run("early"), 0);
}
TEST(Process, AbortModeEndsAtTheFirstReport) {
    EXPECT_EQ(run("misuse", {"SOFTDEV_STRICT=abort"}), 128 + SIGABRT);
}
TEST(Process, OffModeReportsNothing) {
    EXPECT_EQ(run("misuse", {"SOFTDEV_STRICT=off"}), 0);
}
TEST(Process, ErrorModeReports) {
    EXPECT_EQ(run("misuse"), 1);
}
TEST(Process, PageableMemoryCanBeAllowed) {
    EXPECT_EQ(run("pageable"), 1);
    EXPECT_EQ(run("pageable", {"SOFTDEV_PAGEABLE=1"}), 0);
    EXPECT_EQ(run("staged", {"SOFTDEV_PAGEABLE=0"}), 0);
    EXPECT_EQ(run("staged", {"SOFTDEV_PAGEABLE=1"}), 0);
}
TEST(Process, TheNumberOfDevicesIsASetting) {
    EXPECT_EQ(run("devices"), 8);
    EXPECT_EQ(run("devices", {"SOFTDEV_DEVICES=3"}), 3);
    EXPECT_EQ(run("devices", {"SOFTDEV_DEVICES=0"}), 100) << "CUDA_ERROR_NO_DEVICE";
}
TEST(Process, BoundedHistory) {
    EXPECT_EQ(run("history"), 0);
}

}  // namespace
