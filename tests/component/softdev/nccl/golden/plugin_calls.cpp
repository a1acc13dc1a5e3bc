// SPDX-License-Identifier: Apache-2.0
// How NCCL calls a network plugin in a fixed job of two ranks, and of one: which thread makes which
// call, in which order connections are made and closed, what is registered, sent and received.
// Printed so that nothing depends on time: polls and interleavings are left out.
//
// usage: plugin_calls CHECKING_PLUGIN [two-networks]
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/component/softdev/nccl/golden/two_ranks.h"
#include "tests/component/softdev/nccl/own_network.h"

namespace softdev::test {
namespace {

// ---- the job --------------------------------------------------------------------------------

void check(long result, const char* what) {
    if (result != 0) {
        std::fprintf(stderr, "%s: %ld, %s\n", what, result, ncclGetLastError(nullptr));
        std::_Exit(1);
    }
}

void job(TwoRanks& self) {
    const ncclUniqueId id = self.next_id();
    ncclComm_t comm = nullptr;
    check(ncclCommInitRank(&comm, 2, id, self.rank), "ncclCommInitRank");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    constexpr size_t kMost = size_t{3} << 20;
    char* data = nullptr;
    check(cudaMalloc(reinterpret_cast<void**>(&data), 2 * kMost), "cudaMalloc");
    for (const size_t bytes : {size_t{4}, size_t{100} << 10, kMost}) {
        check(ncclAllReduce(data, data, bytes / 4, ncclInt, ncclSum, comm, stream), "all-reduce");
        check(cudaStreamSynchronize(stream), "all-reduce");
    }
    check(ncclBroadcast(data, data, kMost / 4, ncclInt, 0, comm, stream), "broadcast");
    check(cudaStreamSynchronize(stream), "broadcast");
    for (const size_t bytes : {size_t{0}, size_t{4}, size_t{1} << 20}) {
        check(ncclGroupStart(), "ncclGroupStart");
        check(ncclSend(data, bytes, ncclInt8, 1 - self.rank, comm, stream), "ncclSend");
        check(ncclRecv(data + kMost, bytes, ncclInt8, 1 - self.rank, comm, stream), "ncclRecv");
        check(ncclGroupEnd(), "ncclGroupEnd");
        check(cudaStreamSynchronize(stream), "messages");
    }
    self.meet();
    check(ncclCommDestroy(comm), "ncclCommDestroy");
}

// Each rank by itself: NCCL opens the network, whatever it is good for.
void job_alone() {
    ncclUniqueId id{};
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    ncclComm_t comm = nullptr;
    check(ncclCommInitRank(&comm, 1, id, 0), "ncclCommInitRank");
    char* data = nullptr;
    check(cudaMalloc(reinterpret_cast<void**>(&data), 4096), "cudaMalloc");
    check(ncclAllReduce(data, data, 1024, ncclInt, ncclSum, comm, nullptr), "all-reduce");
    check(cudaDeviceSynchronize(), "all-reduce");
    check(ncclCommDestroy(comm), "ncclCommDestroy");
}

// ---- what the plugin has written ------------------------------------------------------------

struct Call {
    std::string thread, name;
    std::vector<std::string> words;
};

std::vector<Call> calls_of(const std::string& path) {
    std::vector<Call> calls;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        Call call;
        words >> call.thread >> call.name;
        for (std::string word; words >> word;) {
            call.words.push_back(word);
        }
        calls.push_back(std::move(call));
    }
    return calls;
}

// "1048576 x3, 4": what comes several times in a row is counted.
class Runs {
public:
    void add(const std::string& one) {
        if (!runs_.empty() && runs_.back().first == one) {
            ++runs_.back().second;
        } else {
            runs_.emplace_back(one, 1);
        }
    }
    std::string text() const {
        std::string all;
        for (const auto& [one, times] : runs_) {
            all += (all.empty() ? "" : ", ") + one +
                   (times > 1 ? " x" + std::to_string(times) : std::string());
        }
        return all.empty() ? "nothing" : all;
    }

private:
    std::vector<std::pair<std::string, int>> runs_;
};

struct Endpoint {
    std::string device;
    Runs registered, posted, arrived;
    int consumed = 0;
    int flushed = 0;
};

class Log {
public:
    explicit Log(std::vector<Call> calls) : calls_(std::move(calls)) {
        for (const Call& call : calls_) {
            if (call.thread == "main") {
                roles_["main"] = "caller";
            } else if (call.name == "listen") {
                roles_[call.thread] = "service";
            } else if (call.name == "isend" || call.name == "irecv") {
                roles_[call.thread] = "progress";
            }
        }
    }

    void print() {
        threads();
        for (const char* role : {"caller", "service"}) {
            order(role);
        }
        attributes();
        endpoints();
    }

private:
    std::string role(const Call& call) const {
        const auto found = roles_.find(call.thread);
        return found == roles_.end() ? "another" : found->second;
    }

    void threads() const {
        std::map<std::string, std::set<std::string>> by_call;
        for (const Call& call : calls_) {
            if (call.name != "done") {
                by_call[call.name].insert(role(call));
            }
        }
        for (const auto& [name, roles] : by_call) {
            std::string all;
            for (const std::string& one : roles) {
                all += " " + one;
            }
            std::printf("  %s on:%s\n", name.c_str(), all.c_str());
        }
    }

    // Polls, and what follows the last poll of a connection, come in any order: one word for all.
    void order(const std::string& wanted) const {
        static const std::set<std::string> polling = {"setNetAttr", "connect", "accept", "regMr"};
        Runs words;
        bool in_polls = false;
        bool told = false;
        int untold = 0;
        for (const Call& call : calls_) {
            if (role(call) != wanted) {
                continue;
            }
            const bool poll = call.name == "connect" || call.name == "accept";
            untold += poll && !told;
            told = call.name == "setNetAttr";
            const bool listener = call.name == "close" && call.words[0][0] == 'L';
            if (polling.count(call.name) != 0 || listener) {
                if (!in_polls) {
                    words.add("polls");
                }
                in_polls = true;
                continue;
            }
            in_polls = false;
            words.add(call.name + (call.name == "close" ? std::string(1, call.words[0][0]) : ""));
        }
        std::printf("  %s: %s\n", wanted.c_str(), words.text().c_str());
        if (wanted == "service") {
            std::printf("  polls without setNetAttr before: %s\n", untold == 0 ? "none" : "some");
        }
    }

    // "1,1,2,2": most and fewest are the same; the service thread's are not.
    static bool of_a_transfer(const std::string& text) {
        int most_peers = 0;
        int fewest_peers = 0;
        int most_flows = 0;
        int fewest_flows = 0;
        return std::sscanf(text.c_str(), "%d,%d,%d,%d", &most_peers, &fewest_peers, &most_flows,
                           &fewest_flows) == 4 &&
               most_peers == fewest_peers && most_flows == fewest_flows;
    }

    // On the progress thread one direction is news and the other as it was left, which depends on
    // time: each by itself.
    void attributes() const {
        std::set<std::string> told;
        for (const Call& call : calls_) {
            if (call.name != "setNetAttr") {
                continue;
            }
            const auto& w = call.words;
            const std::string who = role(call);
            const std::string what =
                w[0] + " " + w[1] + " " + w[2] + " " + w[3] + " " + w[4] + " " + w[5];
            if (who == "service") {
                told.insert(who + " " + what + " send " + w[7] + " recv " + w[9]);
                continue;
            }
            told.insert(who + " " + what);
            for (const size_t at : {size_t{7}, size_t{9}}) {
                if (of_a_transfer(w[at])) {
                    told.insert(who + " " + w[at - 1] + " " + w[at]);
                }
            }
        }
        for (const std::string& one : told) {
            std::printf("  setNetAttr on %s\n", one.c_str());
        }
    }

    void endpoints() {
        std::map<std::string, std::string> listening;  // L -> device
        std::map<std::string, std::string> names;      // S, R -> in the order of the first polls
        std::map<std::string, std::string> waiting;    // handle -> name
        std::map<std::string, Endpoint> all;
        int sends = 0;
        for (const Call& call : calls_) {
            const auto& w = call.words;
            if (call.name == "listen") {
                listening[w[1]] = w[0];
            } else if (call.name == "connect") {
                auto& name = waiting[w[2]];
                name = name.empty() ? "send " + std::to_string(sends++) : name;
                all[name].device = w[0];
                if (w[1] != "-") {
                    names[w[1]] = name;
                    waiting.erase(w[2]);
                }
            } else if (call.name == "accept" && w[1] != "-") {
                names[w[1]] = "receive " + w[0].substr(1);
                all[names[w[1]]].device = listening[w[0]];
            } else if (!w.empty() && names.count(w[0]) != 0) {
                take(all[names[w[0]]], call);
            }
        }
        for (const auto& [name, one] : all) {
            std::printf("  %s, device %s: registers %s\n    posts %s\n", name.c_str(),
                        one.device.c_str(), one.registered.text().c_str(),
                        one.posted.text().c_str());
            if (name[0] == 'r') {
                std::printf("    gets %s; %d consumed, %d flushed\n", one.arrived.text().c_str(),
                            one.consumed, one.flushed);
            }
        }
    }

    static void take(Endpoint& one, const Call& call) {
        const auto& w = call.words;
        if (call.name == "regMr") {
            one.registered.add(w[1] + " " + w[2]);
        } else if (call.name == "isend" || call.name == "irecv") {
            std::string text = w[1];
            for (size_t i = 2; i < w.size(); ++i) {
                text += " " + w[i];
            }
            one.posted.add(text);
        } else if (call.name == "done" && w[0][0] == 'R') {
            one.arrived.add(w[1]);
        } else if (call.name == "irecvConsumed") {
            ++one.consumed;
        } else if (call.name == "iflush") {
            ++one.flushed;
        }
    }

    std::vector<Call> calls_;
    std::map<std::string, std::string> roles_;
};

int run(const char* plugin) {
    char folder[] = "/tmp/plugin-calls-XXXXXX";
    if (mkdtemp(folder) == nullptr) {
        return 2;
    }
    setenv("NCCL_NET_PLUGIN", plugin, 1);
    setenv("SOFTNET_CHECK_LOG", "/dev/null", 1);
    const std::string alone = std::string(folder) + "/alone";
    int bad = run_two_ranks(
        [&](TwoRanks& self) {
            if (self.rank == 0) {
                setenv("SOFTNET_CHECK_CALLS", alone.c_str(), 1);
                job_alone();
            }
        },
        100);
    std::printf("one rank\n");
    Log(calls_of(alone)).print();
    unlink(alone.c_str());
    for (const char* protocol : {"Simple", "LL", "LL128"}) {
        setenv("NCCL_PROTO", protocol, 1);
        const auto file = [&](int rank) {
            return std::string(folder) + "/" + protocol + std::to_string(rank);
        };
        bad |= run_two_ranks(
            [&](TwoRanks& self) {
                setenv("SOFTNET_CHECK_CALLS", file(self.rank).c_str(), 1);
                job(self);
            },
            100);
        for (int rank = 0; rank < 2; ++rank) {
            std::printf("NCCL_PROTO=%s rank %d\n", protocol, rank);
            Log(calls_of(file(rank))).print();
            unlink(file(rank).c_str());
        }
    }
    rmdir(folder);
    return bad;
}

}  // namespace
}  // namespace softdev::test

int main(int count, char** arguments) {
    const bool two_networks = count == 3 && std::string(arguments[2]) == "two-networks";
    if (count != 2 && !two_networks) {
        std::fprintf(stderr, "usage: plugin_calls CHECKING_PLUGIN [two-networks]\n");
        return 2;
    }
    if (two_networks) {
        if (!softdev::test::enter_own_network(arguments)) {
            return 77;
        }
        setenv("NCCL_SOCKET_IFNAME", "eth", 1);
    }
    return softdev::test::run(arguments[1]);
}
