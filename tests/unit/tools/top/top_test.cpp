// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/live_folder.h"
#include "shim/runtime/live_socket.h"
#include "tools/top/live_sockets.h"
#include "tools/top/top_text.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

json record(int rank, std::int64_t sent) {
    return {{"format", "deft-observe"},
            {"version", 1},
            {"library", {{"version", "0.1.0"}}},
            {"nccl", {{"version", 22809}}},
            {"host", "a"},
            {"rank", rank},
            {"ranks", 8},
            {"pid", 100 + rank},
            {"job",
             {{"id", "42"},
              {"command",
               "python train.py --weights \x1b[31m"
               "a\u00e9"}}},
            {"mode", "exact"},
            {"calls", json::object()},
            {"plugin", {{"loaded", true}}},
            {"iterations",
             {{"seen", 1204},
              {"stable", true},
              {"time_ms", {{"median", 80.0}, {"n", 9}}},
              {"exposed_ms", {{"median", 12.34}, {"n", 9}}},
              {"coverage_rate", {{"median", 1.5}, {"n", 9}}}}},
            {"buckets", json::array()},
            {"links",
             {{{"name", "eth0"},
               {"kind", "tcp"},
               {"bytes_sent", sent},
               {"bytes_received", 2 * sent},
               {"resent_bytes", 1500000},
               {"transitions", 3}}}},
            {"plans", {{{"state", "running"}, {"policy", "best"}, {"before_ms", 100.0}}}}};
}

ObserveFile parsed(const json& document) {
    return parse_observe_file("x", document.dump());
}

TopScreen screen() {
    TopScreen screen;
    screen.host = "a";
    screen.time = "14:03:21";
    const ObserveFile before = parsed(record(0, 1'000'000));
    screen.ranks = {{parsed(record(0, 5'000'000)), before.links, 2},
                    {parsed(record(1, 3'000'000)), before.links, 4}};
    return screen;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        const auto end = text.find('\n', at);
        lines.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return lines;
}

// A job that no scheduler has started has no id; a Slurm job has one for all its steps.
TEST(TopText, JobsAreToldApartByTheirCommunicators) {
    TopScreen several;
    several.lines = 100;
    const auto add = [&](int rank, const char* id, std::vector<std::string> communicators) {
        ObserveFile file = parsed(record(rank, 1));
        file.ranks = 2;
        file.job.id = id;
        file.communicators = std::move(communicators);
        several.ranks.push_back({file, {}, 0});
    };
    for (const char* id : {"", "42"}) {
        add(0, id, {"aa", "cc"});
        add(0, id, {"bb"});
        add(1, id, {"cc", "aa"});
        add(1, id, {"bb"});
    }
    const std::string text = top_text(several);
    std::size_t jobs = 0;
    for (auto at = text.find("2 of 2 ranks"); at != text.npos;
         at = text.find("2 of 2 ranks", at + 1)) {
        ++jobs;
    }
    EXPECT_EQ(jobs, 4U) << text;
}

TEST(TopText, ShowsRanksPlansAndRates) {
    EXPECT_THAT(
        lines_of(top_text(screen())),
        ElementsAre("deft top: a 14:03:21, 2 ranks", "",
                    HasSubstr("job 42, 2 of 8 ranks here, mode exact: python train.py --weights"),
                    " rank      pid iteration       ms  exposed  cover  plan",
                    "    0      100      1204     80.0     12.3   1.50  best, 20 % quicker",
                    "    1      101      1204     80.0     12.3   1.50  best, 20 % quicker",
                    "            link  kind     MB/s out      MB/s in    MB resent  changes",
                    "            eth0   tcp          2.5          5.0          3.0        6"));
}

TEST(TopText, FitsTheTerminal) {
    TopScreen small = screen();
    small.columns = 20;
    small.lines = 4;
    const std::vector<std::string> lines = lines_of(top_text(small));
    ASSERT_EQ(lines.size(), 4U);
    EXPECT_EQ(lines[3], "(5 more lines)");
    EXPECT_EQ(lines[2], "job 42, 2 of 8 ranks");
    EXPECT_EQ(top_text(screen()).find('\x1b'), std::string::npos);
}

TEST(TopText, OfANewLinkNoRateIsKnown) {
    TopScreen fresh = screen();
    fresh.ranks[0].seconds = 0;
    EXPECT_THAT(lines_of(top_text(fresh)).back(), HasSubstr("tcp          0.5          1.0"));
    fresh.ranks[1].earlier.clear();
    EXPECT_THAT(lines_of(top_text(fresh)).back(), HasSubstr("tcp            -            -"));
    json quiet = record(0, 1);
    quiet["plans"] = json::array();
    quiet["mode"] = "observe";
    quiet["iterations"]["time_ms"] = {{"median", nullptr}, {"n", 0}};
    fresh.ranks = {{parsed(quiet), {}, 0}};
    EXPECT_THAT(top_text(fresh), HasSubstr("mode observe plans nothing"));
}

TEST(TopText, NamesWhoDoesNotAnswer) {
    TopScreen silent = screen();
    silent.silent = {"/tmp/deft-7/13.sock"};
    EXPECT_THAT(lines_of(top_text(silent))[1], HasSubstr("/tmp/deft-7/13.sock: no answer"));
}

TEST(TopWaits, ForThoseWhoHaveBegunToAnswer) {
    using std::chrono::milliseconds;
    EXPECT_TRUE(enough({}, milliseconds(50))) << "nobody is there";
    EXPECT_FALSE(enough({.silent = 1}, milliseconds(4900)));
    EXPECT_FALSE(enough({.first = 1, .complete = 7}, milliseconds(4900)));
    EXPECT_TRUE(enough({.first = 1, .complete = 7}, milliseconds(5000)));
    EXPECT_TRUE(enough({.complete = 8}, milliseconds(1100)));
    EXPECT_FALSE(enough({.silent = 1, .complete = 7}, milliseconds(1100)));
    EXPECT_TRUE(enough({.silent = 1, .complete = 7}, milliseconds(2000)));
}

class Live : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = "/tmp/deft-live-test-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
        ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
        path_ = folder_ + "/deft/" + std::to_string(::getpid()) + ".sock";
    }
    void TearDown() override {
        ::unsetenv("XDG_RUNTIME_DIR");
        fs::remove_all(folder_);
    }
    // Ranks of this test's process that the reader sees; root sees those of others, too.
    std::size_t seen(LiveSockets& sockets) const {
        std::size_t ranks = 0;
        for (const LiveRank& rank : sockets.ranks()) {
            ranks += rank.record.path == path_ ? 1 : 0;
        }
        return ranks;
    }
    LiveRank own(const LiveSockets& sockets) const {
        for (const LiveRank& rank : sockets.ranks()) {
            if (rank.record.path == path_) {
                return rank;
            }
        }
        return {};
    }
    static void read(LiveSockets& sockets) {
        sockets.read(std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
    }

    std::string folder_, path_;
    const std::string snapshot_ = record(0, 1).dump() + "\n" + record(1, 1).dump() + "\n";
};

TEST_F(Live, AViewerGetsASnapshotASecond) {
    LiveSocket live;
    live.open();
    ASSERT_EQ(::access(path_.c_str(), F_OK), 0);
    EXPECT_FALSE(live.wanted(5)) << "nobody looks";
    LiveSockets sockets(::geteuid());
    read(sockets);
    EXPECT_TRUE(live.wanted(5));
    live.give(snapshot_, 5);
    EXPECT_FALSE(live.wanted(6));
    read(sockets);
    EXPECT_EQ(seen(sockets), 2U);
    EXPECT_FALSE(live.wanted(4 + LiveSocket::kEvery));
    EXPECT_TRUE(live.wanted(5 + LiveSocket::kEvery));
    live.close();
    EXPECT_NE(::access(path_.c_str(), F_OK), 0);
    read(sockets);
    EXPECT_EQ(seen(sockets), 0U);
}

TEST_F(Live, RatesAreThoseOfEachProcess) {
    LiveSocket live;
    live.open();
    LiveSockets sockets(::geteuid());
    read(sockets);
    ASSERT_TRUE(live.wanted(1));
    // A stopped process: its socket takes connections, and nothing comes.
    const std::string other = folder_ + "/deft/1.sock";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, other.c_str(), sizeof(address.sun_path) - 1);
    const UniqueFd stopped(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(stopped.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(stopped.get(), 1), 0);
    live.give(snapshot_, 1);
    read(sockets);
    EXPECT_EQ(own(sockets).seconds, 0);
    EXPECT_THAT(sockets.silent(), testing::Contains(other));
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    ASSERT_TRUE(live.wanted(1 + LiveSocket::kEvery));
    live.give(record(0, 7).dump() + "\n", 1 + LiveSocket::kEvery);
    read(sockets);
    EXPECT_EQ(own(sockets).record.links[0].bytes_sent, 7);
    ASSERT_EQ(own(sockets).earlier.size(), 1U);
    EXPECT_EQ(own(sockets).earlier[0].bytes_sent, 1);
    EXPECT_GE(own(sockets).seconds, 0.6);
    // Read right behind it: the distance of the two says nothing, that to the first does.
    ASSERT_TRUE(live.wanted(1 + 2 * LiveSocket::kEvery));
    live.give(record(0, 9).dump() + "\n", 1 + 2 * LiveSocket::kEvery);
    read(sockets);
    EXPECT_EQ(own(sockets).record.links[0].bytes_sent, 9);
    EXPECT_EQ(own(sockets).earlier[0].bytes_sent, 1);
    EXPECT_GE(own(sockets).seconds, 0.6);
}

TEST_F(Live, WhoLetsNobodyInIsNamed) {
    LiveSocket live;
    live.open();
    LiveSockets first(::geteuid());
    LiveSockets last(::geteuid());
    read(first);
    for (std::size_t i = 0; i <= LiveSocket::kMostViewers; ++i) {
        LiveSockets more(::geteuid());
        read(more);
    }
    read(last);
    EXPECT_THAT(last.silent(), testing::Contains(path_));
    EXPECT_THAT(last.problems(), testing::Not(testing::Contains(HasSubstr(path_))));
}

TEST_F(Live, ASlowViewerHoldsNobodyUp) {
    LiveSocket live;
    live.open();
    LiveSockets sockets(::geteuid());
    read(sockets);
    ASSERT_TRUE(live.wanted(1));
    json large = record(0, 1);
    large["job"]["command"] = std::string(3 << 20, 'x');
    live.give(large.dump() + "\n", 1);  // more than a socket takes at once
    for (int i = 0; i < 400 && seen(sockets) == 0; ++i) {
        EXPECT_FALSE(live.wanted(2));
        read(sockets);
    }
    EXPECT_EQ(seen(sockets), 1U);
}

TEST_F(Live, OnlyAFolderOfTheUsersOwnIsUsed) {
    ASSERT_EQ(::mkdir((folder_ + "/deft").c_str(), 0700), 0);
    ASSERT_EQ(::chmod((folder_ + "/deft").c_str(), 0755), 0);
    EXPECT_FALSE(is_private(folder_ + "/deft", ::geteuid()));
    LiveSocket live;
    live.open();
    EXPECT_NE(::access(path_.c_str(), F_OK), 0);
    live.close();
    ASSERT_EQ(::chmod((folder_ + "/deft").c_str(), 0700), 0);
    EXPECT_TRUE(is_private(folder_ + "/deft", ::geteuid()));
    EXPECT_FALSE(is_private(folder_ + "/deft", ::geteuid() + 1));
    EXPECT_THAT(live_folders(::geteuid()).front(), folder_ + "/deft");
}

TEST_F(Live, WhatIsLeftOfAKilledProcessIsReplaced) {
    fs::create_directory(folder_ + "/deft");
    fs::permissions(folder_ + "/deft", fs::perms::owner_all);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    const UniqueFd stale(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    LiveSockets sockets(::geteuid());
    read(sockets);
    EXPECT_EQ(seen(sockets), 0U);
    EXPECT_EQ(::access(path_.c_str(), F_OK), 0) << "it may be about to listen";
    LiveSocket live;
    live.open();
    read(sockets);
    EXPECT_TRUE(live.wanted(1));
    const std::string other = folder_ + "/deft/1.sock";
    std::strncpy(address.sun_path, other.c_str(), sizeof(address.sun_path) - 1);
    const UniqueFd old(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(old.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timespec then[2] = {{1000000000, 0}, {1000000000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, other.c_str(), then, 0), 0);
    read(sockets);
    EXPECT_NE(::access(other.c_str(), F_OK), 0) << "the file goes";
}

TEST_F(Live, WhatIsNoRecordIsTold) {
    LiveSocket live;
    live.open();
    LiveSockets sockets(::geteuid());
    read(sockets);
    ASSERT_TRUE(live.wanted(1));
    live.give("{\"format\":\"x\"}\n", 1);
    read(sockets);
    EXPECT_EQ(seen(sockets), 0U);
    EXPECT_THAT(sockets.problems(), testing::Contains(HasSubstr("not a report of deft")));
}

}  // namespace
}  // namespace deft::tools
