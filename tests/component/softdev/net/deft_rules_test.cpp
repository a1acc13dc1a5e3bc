// SPDX-License-Identifier: Apache-2.0
// NCCL's rules on the product library, through every table version. DEFT_INTERFACES says over how
// many links.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "softdev/net/rules_driver.h"
#include "tests/component/softdev/net/environment.h"

namespace softdev::net {
namespace {

// The environment of a test: the library, and the version to look for.
void choose(Environment& environment, int abi) {
    environment.set("NCCL_NET_PLUGIN", DEFT_LIBRARY);
    environment.set("SOFTDEV_NET_ABI", std::to_string(abi));
    environment.unset("NCCL_NET");
}

class DeftRules : public testing::TestWithParam<std::tuple<int, Scenario>> {};

TEST_P(DeftRules, AreKept) {
    const auto& [abi, scenario] = GetParam();
    Environment environment;
    choose(environment, abi);
    RulesOptions options;
    const char* seed = std::getenv("DEFT_TEST_SEED");
    options.seed = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 70 + abi;
    RecordProperty("seed", std::to_string(options.seed));
    // Every other version in two processes, as NCCL has them.
    EXPECT_EQ(
        abi % 2 == 0 ? run_in_processes(scenario, options) : run_in_threads(scenario, options), "")
        << "seed " << options.seed << ": DEFT_TEST_SEED repeats it";
}

INSTANTIATE_TEST_SUITE_P(
    All, DeftRules, testing::Combine(testing::Range(6, 13), testing::ValuesIn(rules_scenarios())),
    [](const auto& info) {
        return "V" + std::to_string(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
    });

// Sends and receives until both fail; says so once `calls` calls were made.
void traffic(Side& side, int calls, int progress) {
    Connections made = side.connect(1, 1);
    Net& net = *side.net.net();
    std::vector<char> memory(2 << 20);
    void* requests[2] = {};
    const Deadline deadline = after_seconds(side.options.patience_s);
    side.peer.barrier();
    bool failed[2] = {};
    while (!(failed[0] && failed[1])) {
        if (calls-- == 0 && write(progress, "x", 1) != 1) {
            throw DriveError("write");
        }
        if (std::chrono::steady_clock::now() > deadline) {
            throw DriveError("a killed peer was not noticed");
        }
        for (int i = 0; i < 2; ++i) {
            void* data[1] = {memory.data() + i * (1 << 20)};
            size_t sizes[1] = {1 << 20};
            int tags[1] = {0};
            void* none[1] = {nullptr};
            int result = DEFT_NET_SUCCESS;
            int done = 0;
            if (failed[i]) {
                continue;
            }
            if (requests[i] != nullptr) {
                result = net.test(requests[i], &done, nullptr);
            } else if (i == 0) {
                result =
                    net.isend(made.send[0], data[0], sizes[0], 0, nullptr, nullptr, &requests[i]);
            } else {
                result = net.irecv(made.receive[0], 1, data, sizes, tags, none, none, &requests[i]);
            }
            requests[i] = done != 0 ? nullptr : requests[i];
            failed[i] = result != DEFT_NET_SUCCESS;
        }
    }
    close_all(side.net, &made);
}

class DeftKilledPeer : public testing::TestWithParam<int> {};

TEST_P(DeftKilledPeer, IsAnErrorAndNoHang) {
    Environment environment;
    choose(environment, GetParam());
    int fds[2];
    int progress[2];
    ASSERT_EQ(pipe(progress), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    pid_t children[2];
    for (int i = 0; i < 2; ++i) {
        children[i] = fork();
        if (children[i] == 0) {
            alarm(300);
            close(fds[1 - i]);
            try {
                RulesOptions options;
                NetRegistry registry;
                Rendezvous peer(deft::UniqueFd(fds[i]), options.patience_s);
                CommNet net;
                CommRequest request;
                if (registry.open(request, &net) != DEFT_NET_SUCCESS) {
                    _exit(3);
                }
                Side side{i, net, registry, peer, options, std::mt19937_64(1)};
                traffic(side, 300 * (GetParam() - 5), progress[1]);
                check(net.release(), *net.net(), "finalize");
            } catch (const std::exception& error) {
                fprintf(stderr, "end %d: %s\n", i, error.what());
                _exit(2);
            }
            _exit(0);
        }
    }
    close(fds[0]);
    close(fds[1]);
    close(progress[1]);
    char byte = 0;
    EXPECT_EQ(read(progress[0], &byte, 1), 1);  // in the midst of it
    kill(children[1], SIGKILL);
    int status = -1;
    waitpid(children[1], nullptr, 0);
    waitpid(children[0], &status, 0);
    close(progress[0]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

INSTANTIATE_TEST_SUITE_P(All, DeftKilledPeer, testing::Range(6, 13),
                         [](const auto& info) { return "V" + std::to_string(info.param); });

}  // namespace
}  // namespace softdev::net
