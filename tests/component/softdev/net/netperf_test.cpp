// SPDX-License-Identifier: Apache-2.0
// netperf as its user meets it: exit status, messages, JSON. No figure is judged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/component/softdev/net/captured_log.h"

namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
    int status;
    std::string output;  // both streams
};

Outcome run(const std::string& command) {
    Outcome outcome{-1, ""};
    FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
    if (pipe == nullptr) {
        return outcome;
    }
    char text[1024];
    while (fgets(text, sizeof text, pipe) != nullptr) {
        outcome.output += text;
    }
    const int status = pclose(pipe);
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome;
}

std::string netperf() {
    const char* path = std::getenv("NETPERF");
    // For the shell: the build folder's path may hold blanks.
    return std::string("'") + (path != nullptr ? path : "perf/netperf/netperf") + "'";
}

const std::string kQuick = " --time 0.02 --reps 2 --patience 60 --sizes 0,8,64K --latency-sizes 8 ";

TEST(Netperf, WrongUseIsOneLineAndStatusTwo) {
    const std::pair<const char*, const char*> cases[] = {
        {"", "--plugin is required"},
        {"--plugin nosuchplugin", "libnccl-net-nosuchplugin.so: cannot open"},
        {"--plugin /nosuch/plugin.so", "--plugin /nosuch/plugin.so: no such file"},
        {"--plugin libm.so.6", "none of the symbols"},
        {"--plugin socket --ifname nosuch9", "--ifname nosuch9: no running interface"},
        {"--plugin socket --netns nosuch8,nosuch9", "--netns nosuch8: there is no such network"},
        {"--plugin socket --netns a", "two names"},
        {"--plugin socket --sysfs /", "two folders"},
        {"--plugin socket --sysfs /,/nosuch", "--sysfs /nosuch: no such folder"},
        {"--plugin socket --cpus 0", "--cpus 0: two numbers are needed"},
        {"--plugin socket --cpus 0,x", "\"x\" is no CPU this process may use"},
        {"--plugin socket --cpus 0,99999", "\"99999\" is no CPU this process may use"},
        {"--plugin none", "names no plugin"},
        {"--plugin ''", "names no plugin"},
        {"--plugin socket --sizes 8Q", "--sizes \"8Q\" is no size"},
        {"--plugin socket --latency-sizes -5", "--latency-sizes \"-5\" is no size"},
        {"--plugin socket --sizes 8,,9", "an element of the list is empty"},
        {"--plugin socket --sizes 2G", "1G is the most"},
        {"--plugin socket --depth 33", "1 to 32 requests"},
        {"--plugin socket --depth 1K", "--depth 1K: 1 to 32 requests"},
        {"--plugin socket --mode best", "--mode"},
        {"--plugin socket --abi 5", "--abi"},
        {"--plugin socket --time nan", "--time: nan is no number"},
        {"--plugin socket --ifname lo --device 3", "--device 3: Socket has 1 device"},
        {"--plugin socket --json /nosuch/file", "--json /nosuch/file: cannot be written"},
    };
    for (const auto& [arguments, expected] : cases) {
        const Outcome outcome = run(netperf() + " " + arguments);
        EXPECT_EQ(outcome.status, 2) << arguments;
        EXPECT_THAT(outcome.output, AllOf(StartsWith("netperf: "), HasSubstr(expected)))
            << arguments;
        EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << outcome.output;
    }
}

TEST(Netperf, WritesEverythingAsJsonLines) {
    const std::string path = testing::TempDir() + "netperf-" + std::to_string(getpid()) + ".json";
    const Outcome outcome = run(netperf() + " --plugin socket --verify --depth 1,8 --json '" +
                                path + "'" + kQuick + "--ifname lo");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    std::ifstream file(path);
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) {
        lines.push_back(nlohmann::json::parse(line));
    }
    ASSERT_EQ(lines.size(), 1u + 1 + 3 * 2 + 1);
    EXPECT_EQ(lines[0]["kind"], "environment");
    EXPECT_EQ(lines[0]["networks"][0]["name"], "Socket");
    EXPECT_GE(lines[0]["cores"], 1);
    EXPECT_EQ(lines[0]["options"]["seed"], 1);
    EXPECT_EQ(lines[1]["kind"], "verify");
    EXPECT_GT(lines[1]["bytes_checked"], 0);
    EXPECT_EQ(lines[2]["kind"], "bandwidth");
    EXPECT_EQ(lines[7]["gbit_per_s"]["samples"].size(), 2u);
    EXPECT_EQ(lines[8]["kind"], "latency");
    EXPECT_GE(lines[8]["half_round_trip_us"]["n"], 200);
    std::remove(path.c_str());
}

TEST(Netperf, PacesTheMessagesOfEachConnectionAndTimesThem) {
    const std::string path = testing::TempDir() + "netperf-pace-" + std::to_string(getpid());
    const Outcome outcome =
        run(netperf() +
            " --plugin socket --mode steady --sizes 1K --depth 2 --messages 20 --pace 100"
            " --connections 3 --verify --count-wrong --sleep 100 --ifname lo --json '" +
            path + "'");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    std::getline(file, line);
    const nlohmann::json result = nlohmann::json::parse(line);
    EXPECT_EQ(result["connections"], 3);
    EXPECT_EQ(result["message_ms"]["n"], 60);
    EXPECT_GE(result["message_ms"]["min"], 0.0);
    EXPECT_GE(result["seconds"], 0.19);  // the 20th message is not due before
    EXPECT_EQ(result["wrong_bytes"], 0);
    EXPECT_EQ(result["verified"], true);
    std::remove(path.c_str());
}

// Both processes' errors with their times; nothing here ever moves.
TEST(Netperf, GivesTheOtherProcessTimeForItsOwnError) {
    const std::string path = testing::TempDir() + "netperf-grace-" + std::to_string(getpid());
    const Outcome outcome =
        run("SOFTNET_SOCKET_FAULT=hold:1000:/dev/null " + netperf() +
            " --plugin socket --mode steady --sizes 1K --messages 1000 --patience 1"
            " --grace 10 --ifname lo --json '" +
            path + "'");
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    std::ifstream file(path);
    std::set<int> sides;
    int still = 0;
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json result = nlohmann::json::parse(line);
        if (result["kind"] == "error") {
            sides.insert(result["side"].get<int>());
            EXPECT_GT(result["at_s"], 0.0);
            // Who is first ends its connections, which may be what the other one sees.
            const auto text = result["text"].get<std::string>();
            still += text.find("nothing moved") != text.npos ? 1 : 0;
            EXPECT_THAT(text, AnyOf(HasSubstr("nothing moved"), HasSubstr("ncclRemoteError")));
        }
    }
    EXPECT_EQ(sides, (std::set<int>{0, 1}));
    EXPECT_GE(still, 1);
    std::remove(path.c_str());
}

TEST(Netperf, SizeZeroIsMeasuredWithoutAPricePerByte) {
    const Outcome outcome =
        run(netperf() + " --plugin socket --mode bw --time 0.02 --reps 1 --sizes 0 --ifname lo");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(" - CPU s/GB\n"));
}

TEST(Netperf, WrongUseKeepsOldResults) {
    const std::string path = testing::TempDir() + "netperf-old-" + std::to_string(getpid());
    std::ofstream(path) << "yesterday\n";
    const std::string wrong = netperf() + " --plugin nosuchplugin --json '" + path;
    EXPECT_EQ(run(wrong + "'").status, 2);
    std::string kept;
    std::getline(std::ifstream(path), kept);
    EXPECT_EQ(kept, "yesterday");
    EXPECT_EQ(run(wrong + ".new'").status, 2);
    EXPECT_NE(access((path + ".new").c_str(), F_OK), 0) << "an empty file is left";
    std::remove(path.c_str());
}

TEST(Netperf, DrivesEveryTableVersionByTheRules) {
    for (int abi = 6; abi <= 12; ++abi) {
        const PluginLog log;
        const Outcome outcome = run(
            "SOFTNET_CHECK_NULLS=3 SOFTNET_CHECK_LOG='" + log.path() + "' " + netperf() +
            " --plugin '" PLUGIN_DIR "/libnccl-net-checking.so' --verify --connections 2 --bidir" +
            kQuick + "--abi " + std::to_string(abi));
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        EXPECT_THAT(outcome.output, HasSubstr("Checking (v" + std::to_string(abi) + ")"));
        EXPECT_EQ(log.count("violation"), 0u) << testing::PrintToString(log.lines());
        EXPECT_EQ(log.count("accept"), 4u);
        EXPECT_EQ(log.count("unload"), 2u);
    }
}

TEST(Netperf, EntersNamespaces) {
    const std::string tag = std::to_string(getpid() % 100000);
    const std::string a = "sna" + tag;
    const std::string b = "snb" + tag;
    const std::string set_up = "ip netns add " + a + " && ip netns add " + b +
                               " && ip link add eth0 netns " + a +
                               " type veth peer name eth0 netns " + b + " && ip -n " + a +
                               " addr add 10.99.0.1/24 dev eth0 && ip -n " + b +
                               " addr add 10.99.0.2/24 dev eth0 && ip -n " + a +
                               " link set eth0 up && ip -n " + b + " link set eth0 up";
    const Outcome made = run(set_up);
    if (made.status == 0) {
        // Interfaces count once they are running; the command refuses them before.
        Outcome outcome{2, ""};
        for (int i = 0; i < 100 && outcome.status == 2; ++i) {
            outcome = run(netperf() + " --plugin socket --verify --netns " + a + "," + b + kQuick +
                          "--ifname eth");
            usleep(50000);
        }
        EXPECT_EQ(outcome.status, 0) << outcome.output;
    }
    run("ip netns del " + a);
    run("ip netns del " + b);
    if (made.status != 0) {
        GTEST_SKIP() << "network namespaces cannot be made here: " << made.output;
    }
}

}  // namespace
