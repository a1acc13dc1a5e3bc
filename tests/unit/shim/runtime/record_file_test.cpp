// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/record_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace deft {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLongAgo = 1'795'705'670;  // seconds: 2026-11-26T15:07:50Z

class RecordFile : public ::testing::Test {
protected:
    void SetUp() override { fs::create_directory(folder_); }
    void TearDown() override { fs::remove_all(folder_); }

    static Record record(int rank, std::uint64_t writer, const std::string& what) {
        return {rank, writer, record_prefix(rank, writer) + R"(","is":")" + what + "\"}\n"};
    }
    // "0 old|3 new|": the ranks of a file, and what they say.
    static std::string said(const std::string& path) {
        std::string text;
        std::ifstream file(path);
        for (std::string line; std::getline(file, line);) {
            const auto rank = line.find("\"rank\":") + 7;
            const auto what = line.find("\"is\":\"") + 6;
            text += line.substr(rank, line.find(',', rank) - rank) + " " +
                    line.substr(what, line.size() - what - 2) + "|";
        }
        return text;
    }
    int put(int rank, std::uint64_t writer, const std::string& what,
            Earlier earlier = Earlier::Look, std::int64_t started_ns = 0) {
        return put_record(path_, record(rank, writer, what), earlier, started_ns);
    }
    void age(std::int64_t seconds) const {
        const timespec then[2] = {{seconds, 0}, {seconds, 0}};
        ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), then, 0), 0);
    }
    std::size_t files() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
    }

    const std::string folder_ = ::testing::TempDir() + "deft record " + std::to_string(::getpid());
    const std::string path_ = folder_ + "/deft.json";
};

TEST_F(RecordFile, HasALineForEachWriterInOrderOfRanks) {
    EXPECT_EQ(put(3, 30, "new"), 0);
    EXPECT_EQ(put(12, 120, "a"), 0);
    EXPECT_EQ(put(0, 7, "b"), 0);
    EXPECT_EQ(put(12, 120, "c"), 0);
    EXPECT_EQ(said(path_), "0 b|3 new|12 c|");
    EXPECT_EQ(put(1, 30, "other rank"), 0) << "of the same writer";
    EXPECT_EQ(put(0, 8, "other group"), 0) << "of the same rank";
    EXPECT_EQ(said(path_), "0 b|0 other group|1 other rank|12 c|");
    drop_record(path_, 7);
    drop_record(path_, 99);
    EXPECT_EQ(said(path_), "0 other group|1 other rank|12 c|");
    for (const std::uint64_t writer : {8, 30, 120}) {
        drop_record(path_, writer);
    }
    EXPECT_EQ(files(), 0U) << "the last takes the file with it";
}

TEST_F(RecordFile, AnEarlierJobsGoesOutOfTheWay) {
    ASSERT_EQ(put(0, 1, "old"), 0);
    age(kLongAgo);
    const std::int64_t ns = kLongAgo * 1'000'000'000;
    EXPECT_EQ(put(1, 2, "beside"), 0);
    age(kLongAgo);
    EXPECT_EQ(put(1, 2, "at once", Earlier::Keep, ns), 0) << "started with the writer";
    age(kLongAgo);
    EXPECT_EQ(put(1, 2, "not known", Earlier::Keep, 0), 0);
    EXPECT_EQ(said(path_), "0 old|1 not known|");
    EXPECT_EQ(files(), 1U);
    age(kLongAgo);
    EXPECT_EQ(put(1, 2, "later", Earlier::Keep, ns + 1), 0);
    EXPECT_EQ(said(path_), "1 later|");
    EXPECT_EQ(said(path_ + ".20261126T150750Z"), "0 old|1 not known|");
    age(kLongAgo);
    EXPECT_EQ(put(1, 3, "last", Earlier::Replace, ns + 1), 0);
    EXPECT_EQ(said(path_), "1 last|");
    EXPECT_EQ(files(), 2U);
}

TEST_F(RecordFile, WhatIsNoRecordGoes) {
    std::ofstream(path_) << "{\n  \"format\": \"deft-observe\"\n}\n"
                         << record(4, 4, "whole").line << record(5, 5, "cut").line.substr(0, 70);
    EXPECT_EQ(put(0, 1, "new"), 0);
    EXPECT_EQ(said(path_), "0 new|4 whole|");
}

TEST_F(RecordFile, RanksThatWriteAtOnceLoseNothing) {
    constexpr int kRanks = 8;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([this, rank] {
            for (int i = 0; i <= 20; ++i) {
                while (put(rank, static_cast<std::uint64_t>(rank) + 1, std::to_string(i)) ==
                       EWOULDBLOCK) {
                }
            }
        });
    }
    for (std::thread& rank : ranks) {
        rank.join();
    }
    std::ostringstream expected;
    for (int rank = 0; rank < kRanks; ++rank) {
        expected << rank << " 20|";
    }
    EXPECT_EQ(said(path_), expected.str());
}

TEST_F(RecordFile, AFolderThatIsHeldIsLeftForLater) {
    const UniqueFd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(folder.get(), LOCK_EX), 0);
    EXPECT_EQ(put(0, 1, "new"), EWOULDBLOCK);
    EXPECT_EQ(files(), 0U);
    ASSERT_EQ(::flock(folder.get(), LOCK_UN), 0);
    EXPECT_EQ(put(0, 1, "new"), 0);
}

TEST_F(RecordFile, TakesThePlaceOfAFileOnly) {
    const auto put_at = [](const std::string& path) {
        return put_record(path, record(0, 1, "x"), Earlier::Keep, 1);
    };
    EXPECT_EQ(put_at("/nonexistent-folder/report.json"), ENOENT);
    const std::string fifo = folder_ + "/fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    EXPECT_EQ(put_at(fifo), kNotAFile);
    EXPECT_EQ(put_at(folder_), kNotAFile);
    EXPECT_EQ(put_at("/dev/stdout"), kNotAFile);
    // A link to it, so that a mistake of the code's does not take this machine's.
    const std::string nowhere = folder_ + "/nowhere";
    ASSERT_EQ(::symlink("/dev/null", nowhere.c_str()), 0);
    EXPECT_EQ(put_at(nowhere), 0);
    const std::string link = folder_ + "/link";
    ASSERT_EQ(::symlink("deft.json", link.c_str()), 0);
    EXPECT_EQ(put_at(link), kNotAFile) << "leads nowhere yet";
    ASSERT_EQ(put(0, 1, "old"), 0);
    EXPECT_EQ(put_at(link), 0);
    struct stat status {};
    for (const std::string& path : {fifo, nowhere, link}) {
        ASSERT_EQ(::lstat(path.c_str(), &status), 0);
        EXPECT_FALSE(S_ISREG(status.st_mode)) << path;
    }
    EXPECT_EQ(said(path_), "0 x|");
    EXPECT_EQ(files(), 4U) << "nothing is left behind";
}

}  // namespace
}  // namespace deft
