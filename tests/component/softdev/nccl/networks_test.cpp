// SPDX-License-Identifier: Apache-2.0
// Which network devices carry the channels: on hosts with several interfaces, as NCCL's Socket
// transport uses all that are named. In a network namespace of its own, with two interfaces.
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "softdev/nccl/testing/rank_harness.h"
#include "tests/component/softdev/nccl/own_network.h"
#include "tests/component/softdev/nccl/ranks.h"

namespace softdev::test {
namespace {

using softdev::testing::Options;
using softdev::testing::Process;
using softdev::testing::run_processes;

constexpr int kSkipped = 77;

// What two ranks said about their connections: "Ring 00 0 -> 1 send" -> network device.
std::map<std::string, int> devices_of_connections(const std::vector<std::string>& interfaces,
                                                  const std::string& channels = "") {
    const std::string log = ::testing::TempDir() + "softnccl-networks-" + std::to_string(getpid());
    Options options;
    options.environment = {{"NCCL_DEBUG", "INFO"},
                           {"NCCL_DEBUG_SUBSYS", "NET"},
                           {"NCCL_DEBUG_FILE", log + ".%p"},
                           {"NCCL_NET_PLUGIN", "none"},
                           {"NCCL_ALGO", "Ring"},
                           {"NCCL_MAX_NCHANNELS", channels}};
    for (const std::string& names : interfaces) {
        options.of_rank.push_back({{"NCCL_SOCKET_IFNAME", names}});
    }
    if (channels.empty()) {
        options.environment.erase("NCCL_MAX_NCHANNELS");
    }
    std::system(("rm -f " + log + ".*").c_str());
    const auto outcome = run_processes(
        2,
        [](Process& process) {
            use_device(process.rank);
            Rank self{process.rank, process.nranks, nullptr, nullptr};
            const ncclUniqueId id = process.unique_id();
            EXPECT_EQ(ncclCommInitRank(&self.comm, process.nranks, id, process.rank), ncclSuccess);
            EXPECT_EQ(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
            expect_sum(self, self.comm, 2);
            Device<char> data(size_t{1} << 20);
            EXPECT_EQ(ncclGroupStart(), ncclSuccess);
            EXPECT_EQ(ncclSend(data.get(), 1 << 19, ncclInt8, 1 - self.rank, self.comm,
                               self.nccl_stream()),
                      ncclSuccess);
            EXPECT_EQ(ncclRecv(data.get() + (1 << 19), 1 << 19, ncclInt8, 1 - self.rank, self.comm,
                               self.nccl_stream()),
                      ncclSuccess);
            EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
            self.sync();
            EXPECT_EQ(ncclCommDestroy(self.comm), ncclSuccess);
            return 0;
        },
        options);
    EXPECT_TRUE(outcome.good()) << outcome.text();
    FILE* lines = popen(("sed -nE 's#.* (Ring|P2P) Channel ([0-9]+) : (.*) \\[(.*)\\] via "
                         "NET/Socket/([0-9]+).*#\\1 \\2 \\3 \\4=\\5#p' " +
                         log + ".*; rm -f " + log + ".*")
                            .c_str(),
                        "r");
    std::map<std::string, int> devices;
    char line[200];
    while (lines != nullptr && std::fgets(line, sizeof line, lines) != nullptr) {
        const std::string text = line;
        devices[text.substr(0, text.find('='))] = std::stoi(text.substr(text.find('=') + 1));
    }
    pclose(lines);
    return devices;
}

std::map<std::string, int> expected(int channels, int message_channels, int networks) {
    std::map<std::string, int> all;
    // Messages to the next rank begin in the middle of all channels.
    for (const auto& [pattern, first, count] :
         {std::tuple{"Ring", 0, channels}, std::tuple{"P2P", channels / 2, message_channels}}) {
        for (int at = first; at < first + count; ++at) {
            const int channel = at % channels;
            for (const char* way :
                 {"0 -> 1 send", "0 -> 1 receive", "1 -> 0 send", "1 -> 0 receive"}) {
                all[std::string(pattern) + " 0" + std::to_string(channel) + " " + way] =
                    channel % networks;
            }
        }
    }
    return all;
}

TEST(Networks, OneInterfaceGetsTwoChannels) {
    EXPECT_EQ(devices_of_connections({"=eth0", "=eth0"}), expected(2, 2, 1));
}

TEST(Networks, TwoInterfacesGetFourChannelsInTurns) {
    EXPECT_EQ(devices_of_connections({"eth", "eth"}), expected(4, 2, 2));
}

TEST(Networks, FewerChannelsTakeTurnsToo) {
    EXPECT_EQ(devices_of_connections({"eth", "eth"}, "2"), expected(2, 2, 2));
    EXPECT_EQ(devices_of_connections({"eth", "eth"}, "1"), expected(1, 1, 2));
}

TEST(Networks, TheHostWithTheFewestInterfacesSaysHowMany) {
    EXPECT_EQ(devices_of_connections({"eth", "=eth1"}), expected(2, 2, 1));
}

}  // namespace
}  // namespace softdev::test

int main(int count, char** arguments) {
    if (!softdev::test::enter_own_network(arguments)) {
        std::printf("skipped: no network namespaces here\n");
        return softdev::test::kSkipped;
    }
    ::testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
