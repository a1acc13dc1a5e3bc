// SPDX-License-Identifier: Apache-2.0
// Two hosts whose job NCCL's IB carries, with deft's link next to it under a plan. That link dies,
// and the job goes on. Hosts are namespaces of the network; IB is the stand-in's, over RoCE.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/system/shim/control/plan_job.h"
#include "tests/unit/topology/sysfs_tree.h"

namespace deft::test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kEnter = "/usr/bin/nsenter";

bool sh(const std::string& command) {
    return std::system(command.c_str()) == 0;
}

// Two hosts, each with the links of these names, the first of which the kernel knows first.
class Hosts {
public:
    explicit Hosts(const std::vector<std::string>& links) {
        for (pid_t& pid : pids_) {
            int told[2];
            if (::pipe(told) != 0) {
                return;
            }
            pid = ::fork();
            if (pid == 0) {
                const char state = ::unshare(CLONE_NEWNET) == 0 ? 'n' : 'x';
                (void)!::write(told[1], &state, 1);
                ::execl("/bin/sleep", "sleep", "600", nullptr);
                ::_exit(1);
            }
            char state = 'x';
            (void)!::read(told[0], &state, 1);
            ::close(told[0]);
            ::close(told[1]);
            there_ = there_ && state == 'n' && on(pid, "ip link set lo up");
        }
        for (std::size_t i = 0; there_ && i < links.size(); ++i) {
            there_ = connect(links[i], "10.78." + std::to_string(i) + ".");
        }
    }
    ~Hosts() {
        for (const pid_t pid : pids_) {
            if (pid > 0) {
                ::kill(pid, SIGKILL);
                ::waitpid(pid, nullptr, 0);
            }
        }
    }
    Hosts(const Hosts&) = delete;

    bool there() const { return there_; }
    std::string space(int host) const {
        return "--net=/proc/" + std::to_string(pids_[host]) + "/ns/net";
    }
    bool cut(const std::string& link) const {
        return on(pids_[1], "ip link set " + link + " down");
    }
    // Frames leave for a neighbour that nobody is, and neither end hears of it.
    bool lose(const std::string& link, const std::string& network) const {
        const auto to = [&](const char* host) {
            return "ip neigh replace " + network + host + " lladdr 02:00:00:00:00:99 dev " + link;
        };
        return on(pids_[0], to("2")) && on(pids_[1], to("1"));
    }

private:
    static bool on(pid_t pid, const std::string& command) {
        return sh(std::string(kEnter) + " -t " + std::to_string(pid) + " -n " + command +
                  " 2>/dev/null");
    }
    bool connect(const std::string& name, const std::string& network) const {
        bool good = sh("ip link add " + name + " netns " + std::to_string(pids_[0]) +
                       " type veth peer name " + name + " netns " + std::to_string(pids_[1]) +
                       " 2>/dev/null");
        for (int host = 0; host < 2; ++host) {
            const pid_t pid = pids_[host];
            good =
                good &&
                on(pid, "ip addr add " + network + std::to_string(host + 1) + "/24 dev " + name) &&
                on(pid, "ip link set " + name + " up");
        }
        // The kernel reports the carrier a moment after both ends are up; NCCL skips such a link.
        for (int host = 0; host < 2; ++host) {
            const std::string running = "sh -c 'ip -o link show " + name + " | grep -q LOWER_UP'";
            for (int tries = 0; good && !on(pids_[host], running); ++tries) {
                good = tries < 200;
                std::this_thread::sleep_for(20ms);
            }
        }
        return good;
    }

    pid_t pids_[2] = {-1, -1};
    bool there_ = true;
};

bool comes(const std::function<bool()>& what) {
    const auto deadline = std::chrono::steady_clock::now() + 120s;
    while (!what() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(50ms);
    }
    return what();
}

struct Death {
    const char* name;
    bool silent = false;  // no carrier that goes
};

void PrintTo(const Death& death, std::ostream* out) {
    *out << death.name;
}

class DeadNetwork : public ::testing::TestWithParam<Death> {};

TEST_P(DeadNetwork, EndsThePlanAndNotTheJob) {
    if (std::getenv("SOFTDEV_NCCL") != nullptr) {
        GTEST_SKIP() << "NCCL's own IB needs ports";
    }
    if (::geteuid() != 0 || ::access(kEnter, X_OK) != 0) {
        GTEST_SKIP() << "namespaces of the network are root's";
    }
    const Death& death = GetParam();
    // The stand-in's bootstrap takes the first, and cannot end without it.
    const Hosts hosts({"roce0", "eth0"});
    if (!hosts.there()) {
        GTEST_SKIP() << "no network namespaces for this user";
    }
    SysfsTree tree;
    tree.roce("mlx5_0", "roce0");
    const Folder folder;
    std::vector<Started> started;
    for (int rank = 0; rank < 2; ++rank) {
        const Environment environment{{"NCCL_HOSTID", "host" + std::to_string(rank)},
                                      {"DEFT_LOG", "info"},
                                      {"DEFT_WARMUP", "10"},
                                      {"DEFT_MODE", "deft"},
                                      {"DEFT_PLAN", "delay0"},
                                      {"DEFT_GRADIENTS", "trust"},
                                      {"DEFT_SYSFS", tree.root()},
                                      {"SOFTDEV_SYSFS", tree.root()},
                                      {"LD_PRELOAD", PRELOAD},
                                      {"NCCL_NET_PLUGIN", PRELOAD}};
        started.push_back(start({kEnter, hosts.space(rank), PLAN_MAIN, std::to_string(rank), "2",
                                 folder / "id", "20", "until medium"},
                                environment, folder, "rank" + std::to_string(rank)));
    }
    const auto said = [&](const char* words) {
        return std::all_of(started.begin(), started.end(), [&](const Started& rank) {
            return count(read_file(rank.err), words) > 0;
        });
    };
    const bool planned = comes([&] { return said("plan in force"); });
    EXPECT_TRUE(death.silent ? hosts.lose("eth0", "10.78.1.") : hosts.cut("eth0"));
    const bool ended = planned && comes([&] { return said("calls are forwarded again"); });
    std::ofstream(folder / "id.stop").close();
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(planned) << job.ranks[0].err << job.ranks[1].out << job.ranks[1].err;
    EXPECT_TRUE(ended) << job.ranks[0].err << job.ranks[1].err;
    expect_sound(job, "the links of a second network are dead");
    EXPECT_EQ(count(job.ranks[0].err, "the links of a second network are dead"), 1U)
        << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[0].err, "lane deft: "), 1U) << job.ranks[0].err;
}

INSTANTIATE_TEST_SUITE_P(Ways, DeadNetwork,
                         ::testing::Values(Death{"down"}, Death{"black_hole", true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace deft::test
