// SPDX-License-Identifier: Apache-2.0
// A whole job whose calls are tuned, on the stand-in: the ranks carry out every call alike, and
// each number is checked by the job itself. Which way is the fastest here says nothing, so nothing
// is asserted of that.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

// The part of each line that says how a call is carried out.
std::vector<std::string> ways(const std::string& log) {
    constexpr const char* kBegins = "NCCL INFO ";
    std::vector<std::string> ways;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t at = line.find(kBegins);
        if (at != std::string::npos && line.find("-> Algo ") != std::string::npos) {
            ways.push_back(line.substr(at));
        }
    }
    return ways;
}

// Of what `extra` says, NCCL_CONF_FILE is the text of the file.
class Job {
public:
    explicit Job(const std::string& calls, int iterations, Environment extra = {}, int ranks = 2,
                 const std::string& compute_ms = "0") {
        for (int rank = 0; rank < ranks; ++rank) {
            const std::string number = std::to_string(rank);
            Environment environment{{"RANK", number},
                                    {"WORLD_SIZE", std::to_string(ranks)},
                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                    {"NCCL_HOSTID", "host" + number},
                                    {"NCCL_SHM_DISABLE", "1"},
                                    {"NCCL_DEBUG", "INFO"},
                                    {"NCCL_DEBUG_SUBSYS", "INIT,TUNING"},
                                    {"NCCL_DEBUG_FILE", folder_ / ("nccl" + number)},
                                    {"DEFT_INTERFACES", "lo"},
                                    {"DEFT_LOG", "info"},
                                    {"DEFT_TUNER", "auto"},
                                    {"DEFT_OUT", folder_ / "rank%r.json"},
                                    {"LD_PRELOAD", PRELOAD},
                                    {"NCCL_NET_PLUGIN", PRELOAD}};
            for (const auto& [key, value] : extra) {
                const bool file = key.ends_with("NCCL_CONF_FILE");
                if (file) {
                    std::ofstream(folder_ / "nccl.conf") << value << '\n';
                }
                const bool own = key.starts_with("rank");  // "rank1 NAME"
                const std::string given = file ? (folder_ / "nccl.conf").string() : value;
                if (!own) {
                    environment[key] = given;
                } else if (key.starts_with("rank" + number + " ")) {
                    environment[key.substr(key.find(' ') + 1)] = given;
                }
            }
            started_.push_back(
                start({TUNER_JOB, calls, std::to_string(iterations), compute_ms, folder_ / "id"},
                      environment, folder_, "rank" + number));
        }
        for (const Started& rank : started_) {
            ranks_.push_back(finish(rank, folder_));
        }
    }

    void expect_right() const {
        for (const Outcome& rank : ranks_) {
            EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
            EXPECT_EQ(count(rank.out, "\"wrong\": 0}"), 1u) << rank.err;
            EXPECT_EQ(count(rank.err, "softdev: error"), 0u) << rank.err;
        }
    }
    // Of all ranks, which are the same. Of NCCL's own library only rank 0 tells.
    std::vector<std::string> expect_alike() const {
        const std::vector<std::string> first = ways(log(0));
        EXPECT_FALSE(first.empty()) << log(0);
        const bool all_tell = std::getenv("TEST_NCCL_ALGO") == nullptr;
        for (std::size_t rank = 1; all_tell && rank < ranks_.size(); ++rank) {
            EXPECT_EQ(ways(log(rank)), first) << "rank " << rank;
        }
        return first;
    }
    std::string log(std::size_t rank) const {
        return read_file(folder_ / ("nccl" + std::to_string(rank)));
    }
    const std::string& err(std::size_t rank) const { return ranks_[rank].err; }
    // What the leader's report says of tuning.
    nlohmann::json tuning() {
        for (Outcome& rank : ranks_) {
            for (auto& [name, report] : rank.reports) {
                if (name == "rank0.json" && !report["plans"].empty() &&
                    report["plans"][0].contains("tuning")) {
                    return report["plans"][0]["tuning"];
                }
            }
        }
        return nullptr;
    }

private:
    Folder folder_;
    std::vector<Started> started_;
    std::vector<Outcome> ranks_;
};

std::set<std::string> kinds(const std::vector<std::string>& ways) {
    return {ways.begin(), ways.end()};
}

constexpr const char* kDataParallel = "allreduce:400000,allreduce:40000,allreduce:40000";
constexpr const char* kSharded = "allgather:400000,allgather:40000,reducescatter:400000";

class Tuned : public ::testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(Tuned, RanksCarryOutEveryCallAlike) {
    const auto [calls, ranks] = GetParam();
    // How many parts a trial takes depends on how far the times lie apart, so on the machine's
    // load. A job that was over before the tuner had settled is repeated with more iterations.
    constexpr int kIterations = 700;
    constexpr int kMore = 4;
    int iterations = kIterations;
    auto run = std::make_unique<Job>(calls, iterations, Environment{}, ranks, "8");
    if (run->tuning()["state"] != "settled") {
        iterations *= kMore;
        run = std::make_unique<Job>(calls, iterations, Environment{}, ranks, "8");
    }
    Job& job = *run;
    job.expect_right();
    const std::vector<std::string> ways = job.expect_alike();
    EXPECT_EQ(ways.size(), 3u * static_cast<unsigned>(iterations));
    EXPECT_GT(kinds(ways).size(), 6u) << "other ways were tried";
    EXPECT_EQ(count(job.log(0), "TUNER/Plugin: Using deft (v") +
                  count(job.log(0), "TUNER/Plugin: Using tuner plugin deft"),  // 2.27
              1u)
        << job.log(0);
    const nlohmann::json tuning = job.tuning();
    EXPECT_EQ(tuning["state"], "settled") << tuning.dump(1) << job.err(0);
    EXPECT_GE(tuning["calls"].size(), 2u) << tuning.dump(1);
    for (const nlohmann::json& call : tuning["calls"]) {
        EXPECT_GT(call["own_ms"], 0) << tuning.dump(1);
    }
    // At the end the calls of one kind are carried out in one way.
    const std::vector<std::string> last(ways.end() - 30, ways.end());
    EXPECT_LE(kinds(last).size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Jobs, Tuned,
                         ::testing::Values(std::pair{kDataParallel, 2}, std::pair{kSharded, 2},
                                           std::pair{kDataParallel, 3}),
                         [](const auto& info) {
                             return std::string(info.param.first == kSharded ? "Sharded" : "Ddp") +
                                    std::to_string(info.param.second);
                         });

// Nothing of the following is ever changed: as without deft.
class Untuned : public ::testing::TestWithParam<std::pair<const char*, Environment>> {};

TEST_P(Untuned, NcclChooses) {
    Environment extra = GetParam().second;
    Job job(kDataParallel, 150, extra);
    job.expect_right();
    const auto ways = job.expect_alike();
    const bool none = extra.count("NCCL_TUNER_PLUGIN") + extra.count("rank1 NCCL_TUNER_PLUGIN") > 0;
    if (none && count(job.log(0), "version 2.27.") > 0) {
        GTEST_SKIP() << "NCCL 2.27 takes \"none\" for a tuner's name";
    }
    EXPECT_EQ(kinds(ways).size(), 2u) << "one for each size";
    // With a tuner NCCL does not do all that it does without.
    const bool asked_for = extra.count("DEFT_TUNER") + extra.count("DEFT_MODE") == 0;
    const std::size_t uses = count(job.log(0), "TUNER/Plugin: Using deft (v") +
                             count(job.log(0), "TUNER/Plugin: Using tuner plugin deft");
    const bool can = asked_for && extra.count("NCCL_TUNER_PLUGIN") == 0;
    EXPECT_EQ(uses, can ? 1u : 0u) << job.log(0);
}

// It is made when the group has ended, as if there had been none.
TEST(Groups, AreNoneWhereACallIsAloneInIts) {
    Job job(kSharded, 150, {{"rank1 GROUPED", "1"}});
    job.expect_right();
    EXPECT_GT(kinds(job.expect_alike()).size(), 3u) << "other ways than NCCL's were tried";
}

TEST(OwnTuner, Wins) {
    Job job(kDataParallel, 150, {{"NCCL_TUNER_PLUGIN", OWN_TUNER}});
    job.expect_right();
    const auto ways = kinds(job.expect_alike());
    EXPECT_EQ(ways.size(), 2u);
    for (const std::string& way : ways) {
        EXPECT_EQ(count(way, "Algo TREE proto LL "), 1u) << way;
    }
    EXPECT_EQ(count(job.log(0), "Using deft (v"), 0u) << job.log(0);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Untuned,
    ::testing::Values(
        std::pair{"Default", Environment{{"DEFT_TUNER", ""}}},
        std::pair{"Off", Environment{{"DEFT_TUNER", "off"}}},
        std::pair{"Algorithm", Environment{{"NCCL_ALGO", "Ring,Tree"}}},
        std::pair{"Protocol", Environment{{"NCCL_PROTO", "LL,Simple"}}},
        std::pair{"AlgorithmInAFile", Environment{{"NCCL_CONF_FILE", "NCCL_ALGO=Ring,Tree"}}},
        std::pair{"OneRankHasAFile", Environment{{"rank1 NCCL_CONF_FILE", "NCCL_PROTO=LL,Simple"}}},
        std::pair{"EnvLibrary", Environment{{"NCCL_ENV_PLUGIN", "site"}}},
        std::pair{"NoTuner", Environment{{"NCCL_TUNER_PLUGIN", "none"}}},
        std::pair{"Observe", Environment{{"DEFT_MODE", "observe"}}},
        std::pair{"ModeOff", Environment{{"DEFT_MODE", "off"}}},
        std::pair{"OneRankObserves", Environment{{"rank1 DEFT_MODE", "observe"}}},
        // NCCL 2.21 tells a tuner nothing of what there is.
        std::pair{"OldNccl", Environment{{"SOFTDEV_NCCL_VERSION", "22105"}}},
        std::pair{"OneRankDiffers", Environment{{"rank1 DEFT_TUNER", "off"}}},
        std::pair{"OneRankWithout", Environment{{"rank1 NCCL_TUNER_PLUGIN", "none"}}},
        std::pair{"OneRankNamesAlgorithms", Environment{{"rank1 NCCL_ALGO", "Ring,Tree"}}}),
    [](const auto& info) { return info.param.first; });

class Release : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Release, UsesTheNewestTableThatItKnows) {
    const auto [version, table] = GetParam();
    Job job(kDataParallel, 500, {{"SOFTDEV_NCCL_VERSION", version}});
    job.expect_right();
    EXPECT_GT(kinds(job.expect_alike()).size(), 3u) << "other ways were tried";
    EXPECT_EQ(count(job.log(0), std::string("TUNER/Plugin: Using deft (") + table), 1u)
        << job.log(0);
}

INSTANTIATE_TEST_SUITE_P(All, Release,
                         ::testing::Values(std::pair{"22203", "v3)"}, std::pair{"22405", "v4)"},
                                           std::pair{"22706", "v4)"}, std::pair{"23007", "v6)"}),
                         [](const auto& info) { return std::string("Nccl") + info.param.first; });

}  // namespace
}  // namespace deft::test
