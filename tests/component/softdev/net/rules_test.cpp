// SPDX-License-Identifier: Apache-2.0
// NCCL's rules on Socket and, through the checking plugin, on every table version.
#include "softdev/net/rules_driver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/component/softdev/net/environment.h"

namespace softdev::net {
namespace {

// abi 0 is the built-in Socket itself; nulls: every so manyth call is answered "not now".
struct Way {
    const char* name;
    int abi;
    bool processes;
    int nulls;
    int threads;  // NCCL_SOCKET_NTHREADS
};

void PrintTo(const Way& way, std::ostream* stream) {
    *stream << way.name;
}

constexpr Way kWays[] = {
    {"Socket", 0, false, 0, 0},
    {"SocketProcesses", 0, true, 0, 0},
    {"SocketHelperThreads", 0, false, 0, 2},
    {"V6", 6, false, 0, 0},
    {"V7", 7, false, 3, 0},
    {"V8", 8, true, 0, 0},
    {"V9", 9, false, 2, 0},
    {"V10", 10, true, 3, 0},
    {"V11", 11, false, 3, 0},
    {"V11Processes", 11, true, 2, 0},
    {"V12", 12, false, 0, 0},
};

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

class Rules : public testing::TestWithParam<std::tuple<Way, Scenario>> {};

TEST_P(Rules, AreKept) {
    const auto& [way, scenario] = GetParam();
    Environment environment;
    const std::string log = testing::TempDir() + "softnet-rules-" + std::to_string(getpid());
    std::remove(log.c_str());
    environment.set("SOFTNET_CHECK_LOG", log);
    environment.set("NCCL_SOCKET_IFNAME", "lo");
    environment.set("NCCL_SOCKET_NTHREADS", std::to_string(way.threads));
    environment.set("NCCL_NSOCKS_PERTHREAD", "2");
    environment.unset("NCCL_NET");
    if (way.abi == 0) {
        environment.set("NCCL_NET_PLUGIN", "none");
    } else {
        environment.set("NCCL_NET_PLUGIN", PLUGIN_DIR "/libnccl-net-checking.so");
        environment.set("SOFTDEV_NET_ABI", std::to_string(way.abi));
        environment.set("SOFTNET_CHECK_NULLS", std::to_string(way.nulls));
    }
    RulesOptions options;
    options.seed = 20 + way.abi;
    const std::string result =
        way.processes ? run_in_processes(scenario, options) : run_in_threads(scenario, options);
    EXPECT_EQ(result, "");
    const std::string said = text_of(log);
    EXPECT_EQ(said.find("violation"), std::string::npos) << said;
    if (way.abi != 0) {
        EXPECT_NE(said.find("init v" + std::to_string(way.abi) + " "), std::string::npos) << said;
    }
    std::remove(log.c_str());
}

INSTANTIATE_TEST_SUITE_P(
    All, Rules, testing::Combine(testing::ValuesIn(kWays), testing::ValuesIn(rules_scenarios())),
    [](const auto& info) {
        return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
    });

}  // namespace
}  // namespace softdev::net
