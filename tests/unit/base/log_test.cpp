// SPDX-License-Identifier: Apache-2.0
// The settings of a process are read once, so each case runs in a child of its own.
#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "base/job_folder.h"
#include "base/rate_limit.h"

namespace deft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::string> lines_of(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
        lines.push_back(line);
    }
    return lines;
}

class LogTest : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "deft-log-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
        errors_ = folder_ + "/stderr";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    // Runs `body` in a child with these settings and its standard error in errors_; returns the
    // status of waitpid().
    int in_child(const std::vector<std::pair<const char*, std::string>>& settings,
                 const std::function<void()>& body) {
        const pid_t child = ::fork();
        if (child == 0) {
            for (const auto& [name, value] : settings) {
                ::setenv(name, value.c_str(), 1);
            }
            const int fd = ::open(errors_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
            ::dup2(fd, STDERR_FILENO);
            ::alarm(60);
            body();
            ::_exit(0);
        }
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        return status;
    }

    std::string folder_;
    std::string errors_;
};

TEST_F(LogTest, WarningsAreShownAndOthersNot) {
    EXPECT_EQ(in_child({},
                       [] {
                           DEFT_WARN("link %s is down", "eth0");
                           DEFT_INFO("quiet");
                           DEFT_DEBUG("quieter");
                       }),
              0);
    char host[256] = "";
    ASSERT_EQ(::gethostname(host, sizeof(host)), 0);
    EXPECT_THAT(lines_of(errors_), ElementsAre(AllOf(testing::StartsWith(std::string(host) + ":"),
                                                     EndsWith(" [deft] WARN link eth0 is down"))));
}

TEST_F(LogTest, LevelsFollowTheSetting) {
    const auto all = [] {
        DEFT_WARN("w");
        DEFT_INFO("i");
        DEFT_DEBUG("d");
    };
    EXPECT_EQ(in_child({{"DEFT_LOG", "none"}}, all), 0);
    EXPECT_THAT(lines_of(errors_), IsEmpty());
    EXPECT_EQ(in_child({{"DEFT_LOG", "debug"}}, all), 0);
    EXPECT_THAT(lines_of(errors_),
                ElementsAre(EndsWith("WARN w"), EndsWith("INFO i"), EndsWith("DEBUG d")));
}

TEST_F(LogTest, KeepsErrnoAndUnderstandsPercentM) {
    EXPECT_EQ(in_child({},
                       [] {
                           errno = ENODEV;
                           DEFT_WARN("bind: %m");
                           ::_exit(errno == ENODEV ? 0 : 1);
                       }),
              0);
    EXPECT_THAT(lines_of(errors_), ElementsAre(EndsWith(std::strerror(ENODEV))));
}

TEST_F(LogTest, AMessageIsOneBoundedLine) {
    EXPECT_EQ(in_child({},
                       [] {
                           DEFT_WARN("a\nb\x1b[31mc");
                           DEFT_WARN("%s", std::string(5000, 'x').c_str());
                       }),
              0);
    const std::vector<std::string> lines = lines_of(errors_);
    ASSERT_THAT(lines, SizeIs(2));
    EXPECT_THAT(lines[0], EndsWith("a b [31mc"));
    EXPECT_LT(lines[1].size(), 1024u);
}

TEST_F(LogTest, GoesToAFileNamedByPatternAndAppends) {
    for (int round = 0; round < 2; ++round) {
        EXPECT_EQ(in_child({{"DEFT_LOG_FILE", folder_ + "/log-%r"}, {"RANK", "5"}},
                           [] { DEFT_WARN("hello"); }),
                  0);
    }
    EXPECT_THAT(lines_of(errors_), IsEmpty());
    EXPECT_THAT(lines_of(folder_ + "/log-5"), SizeIs(2));
}

// The folder that a relative name is meant in is that of the job's beginning.
TEST_F(LogTest, AFileStaysWhereTheJobHasBegun) {
    EXPECT_EQ(in_child({{"DEFT_LOG_FILE", "log"}},
                       [this] {
                           const bool moved = ::chdir(folder_.c_str()) == 0;
                           note_job_folder();
                           const bool on = ::chdir("/") == 0;
                           DEFT_WARN("hello");
                           ::_exit(moved && on ? 0 : 1);
                       }),
              0);
    EXPECT_THAT(lines_of(folder_ + "/log"), SizeIs(1));
}

TEST_F(LogTest, AFileThatCannotBeOpenedIsSaidOnceAndStandardErrorIsUsed) {
    EXPECT_EQ(in_child({{"DEFT_LOG_FILE", folder_ + "/absent/log"}},
                       [] {
                           DEFT_WARN("one");
                           DEFT_WARN("two");
                       }),
              0);
    EXPECT_THAT(lines_of(errors_),
                ElementsAre(AllOf(HasSubstr("DEFT_LOG_FILE"), HasSubstr(folder_ + "/absent/log"),
                                  HasSubstr(std::strerror(ENOENT))),
                            EndsWith("one"), EndsWith("two")));
}

TEST_F(LogTest, NeverTakesTheNumberOfAClosedStandardDescriptor) {
    EXPECT_EQ(in_child({{"DEFT_LOG_FILE", folder_ + "/log"}},
                       [] {
                           ::close(STDIN_FILENO);
                           ::close(STDOUT_FILENO);
                           DEFT_WARN("hello");
                           const bool still_closed = ::fcntl(STDIN_FILENO, F_GETFD) < 0 &&
                                                     ::fcntl(STDOUT_FILENO, F_GETFD) < 0;
                           ::_exit(still_closed ? 0 : 1);
                       }),
              0);
    EXPECT_THAT(lines_of(folder_ + "/log"), SizeIs(1));
}

TEST_F(LogTest, AReaderThatHasGoneAwayDoesNotKillTheProcess) {
    EXPECT_EQ(in_child({},
                       [] {
                           ::signal(SIGPIPE, SIG_DFL);
                           int ends[2];
                           if (::pipe(ends) != 0) {
                               ::_exit(2);
                           }
                           ::dup2(ends[1], STDERR_FILENO);
                           ::close(ends[0]);
                           DEFT_WARN("into the void");
                           sigset_t pending;
                           ::sigpending(&pending);
                           ::_exit(sigismember(&pending, SIGPIPE) ? 1 : 0);
                       }),
              0);
}

TEST_F(LogTest, LinesOfManyThreadsDoNotMix) {
    constexpr int kThreads = 8;
    constexpr int kLines = 200;
    EXPECT_EQ(in_child({{"DEFT_LOG", "debug"}},
                       [] {
                           std::vector<std::thread> threads;
                           for (int t = 0; t < kThreads; ++t) {
                               threads.emplace_back([t] {
                                   for (int i = 0; i < kLines; ++i) {
                                       DEFT_DEBUG("<%s>", std::string(300, char('a' + t)).c_str());
                                   }
                               });
                           }
                           for (std::thread& thread : threads) {
                               thread.join();
                           }
                       }),
              0);
    const std::vector<std::string> lines = lines_of(errors_);
    EXPECT_THAT(lines, SizeIs(kThreads * kLines));
    for (const std::string& line : lines) {
        const std::string text = line.substr(line.find('<') + 1, 300);
        EXPECT_EQ(text, std::string(300, text[0]));
        EXPECT_TRUE(line.ends_with('>'));
    }
}

TEST(RateLimit, LeavesOutWhatIsTooMuchAndSaysSo) {
    RateLimit limit;
    std::uint32_t left_out = 0;
    for (std::uint32_t i = 0; i < RateLimit::kMost + 50; ++i) {
        EXPECT_EQ(limit.admits(7 + i / 100, left_out), i < RateLimit::kMost) << i;
        EXPECT_EQ(left_out, 0U);
    }
    EXPECT_FALSE(limit.admits(16, left_out));
    EXPECT_EQ(left_out, 0U);
    EXPECT_TRUE(limit.admits(17, left_out));
    EXPECT_EQ(left_out, 51U);
    EXPECT_TRUE(limit.admits(40, left_out));
    EXPECT_EQ(left_out, 0U);
}

TEST_F(LogTest, AFaultThatRepeatsFillsNoDisk) {
    EXPECT_EQ(in_child({{"DEFT_LOG", "debug"}},
                       [] {
                           for (std::uint32_t i = 0; i < RateLimit::kMost + 50; ++i) {
                               DEFT_INFO("again");
                           }
                           DEFT_WARN("a warning");
                           DEFT_DEBUG("whatever was asked for");
                       }),
              0);
    const std::vector<std::string> lines = lines_of(errors_);
    ASSERT_THAT(lines, SizeIs(RateLimit::kMost + 2));
    EXPECT_THAT(lines[RateLimit::kMost - 1], EndsWith("INFO again"));
    EXPECT_THAT(lines[RateLimit::kMost], EndsWith("WARN a warning"));
    EXPECT_THAT(lines[RateLimit::kMost + 1], EndsWith("DEBUG whatever was asked for"));
}

TEST_F(LogTest, AsJson) {
    const auto warn = [] { DEFT_WARN("link \"%s\" is\ndown", "eth0"); };
    EXPECT_EQ(in_child({{"DEFT_LOG_FORMAT", "json"}, {"DEFT_JOB_ID", "42"}, {"RANK", "3"}}, warn),
              0);
    EXPECT_EQ(in_child({{"DEFT_LOG_FORMAT", "json"}}, warn), 0);
    const std::vector<std::string> lines = lines_of(errors_);
    ASSERT_THAT(lines, SizeIs(2));
    EXPECT_THAT(lines[0], testing::MatchesRegex(
                              "\\{\"time\":\"20..-..-..T..:..:..[.]......Z\",\"level\":\"warn\","
                              "\"host\":\"[^\"]+\",\"pid\":[0-9]+,\"tid\":[0-9]+,\"rank\":3,"
                              "\"job\":\"42\",\"message\":\"link \\\\\"eth0\\\\\" is down\"\\}"));
    EXPECT_THAT(lines[1], HasSubstr("\"rank\":null"));
    EXPECT_THAT(lines[1], testing::Not(HasSubstr("communicator")));
}

TEST_F(LogTest, AsKeyAndValue) {
    const auto warn = [] { DEFT_WARN("link \"eth0\" is down: a=b\\c"); };
    EXPECT_EQ(
        in_child({{"DEFT_LOG_FORMAT", "logfmt"}, {"DEFT_JOB_ID", "4 2"}, {"RANK", "3"}}, warn), 0);
    EXPECT_EQ(in_child({{"DEFT_LOG_FORMAT", "logfmt"}}, [] { DEFT_WARN("short"); }), 0);
    const std::vector<std::string> lines = lines_of(errors_);
    ASSERT_THAT(lines, SizeIs(2));
    EXPECT_THAT(lines[0], testing::MatchesRegex(
                              "time=20..-..-..T..:..:..[.]......Z level=warn host=[^ ]+ pid=[0-9]+ "
                              "tid=[0-9]+ rank=3 job=\"4 2\" message=\"link \\\\\"eth0\\\\\" is "
                              "down: a=b\\\\\\\\c\""));
    EXPECT_THAT(lines[1], EndsWith(" message=short"));
    EXPECT_THAT(lines[1], testing::Not(HasSubstr(" rank=")));
}

TEST_F(LogTest, SaysWhichCommunicatorALineIsAbout) {
    const auto warn = [] {
        const log::About one(0xab, 3);
        {
            const log::About other(0xcd, 4);
            DEFT_WARN("inner");
            std::thread([] { DEFT_WARN("elsewhere"); }).join();
        }
        DEFT_WARN("outer");
    };
    EXPECT_EQ(in_child({{"DEFT_LOG_FORMAT", "logfmt"}}, warn), 0);
    EXPECT_EQ(in_child({{"DEFT_LOG_FORMAT", "json"}}, warn), 0);
    EXPECT_THAT(
        lines_of(errors_),
        ElementsAre(
            EndsWith(" communicator=00000000000000cd communicator_rank=4 message=inner"),
            testing::Not(HasSubstr("communicator")),
            EndsWith(" communicator=00000000000000ab communicator_rank=3 message=outer"),
            HasSubstr("\"communicator\":\"00000000000000cd\",\"communicator_rank\":4,\"message\""),
            testing::Not(HasSubstr("communicator")), HasSubstr("\"communicator_rank\":3,")));
}

TEST_F(LogTest, OncePerPlace) {
    EXPECT_EQ(in_child({},
                       [] {
                           for (int i = 0; i < 3; ++i) {
                               DEFT_WARN_ONCE("round %d", i);
                           }
                       }),
              0);
    EXPECT_THAT(lines_of(errors_), ElementsAre(EndsWith("round 0")));
}

int g_to_nccl = 0;
void count_nccl(int, unsigned long, const char*, int, const char*, ...) {
    ++g_to_nccl;
}

TEST_F(LogTest, WhatIsHeldBackGoesToNcclsLogger) {
    EXPECT_EQ(in_child({},
                       [] {
                           log::set_nccl_logger(count_nccl);
                           DEFT_INFO("shown under NCCL_DEBUG=INFO");
                           DEFT_WARN("shown by deft");
                           DEFT_DEBUG("shown by nobody");
                           log::set_nccl_logger(nullptr);
                           DEFT_INFO("shown by nobody");
                           ::_exit(g_to_nccl == 1 ? 0 : 1);
                       }),
              0);
    EXPECT_THAT(lines_of(errors_), ElementsAre(EndsWith("shown by deft")));
}

}  // namespace
}  // namespace deft
