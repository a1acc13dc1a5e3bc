// SPDX-License-Identifier: Apache-2.0
// What network plugins see of the software NCCL: the checking plugin writes down how it was called
// and complains about every breach of NCCL's rules. Each run is two processes, because a process
// reads most of these settings once.
#include <gmock/gmock.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "softdev/nccl/testing/rank_harness.h"
#include "tests/component/softdev/nccl/ranks.h"

namespace softdev::test {
namespace {

using softdev::testing::Options;
using softdev::testing::Process;
using softdev::testing::run_processes;
using ::testing::HasSubstr;
using ::testing::Not;

void all_reduce(Rank& self, size_t count) {
    std::vector<int> own(count), expected(count);
    for (size_t i = 0; i < count; ++i) {
        own[i] = static_cast<int>(i % 1000) + self.rank;
        expected[i] =
            static_cast<int>(i % 1000) * self.nranks + self.nranks * (self.nranks - 1) / 2;
    }
    Device<int> data(own);
    NC(ncclAllReduce(data.get(), data.get(), count, ncclInt32, ncclSum, self.comm,
                     self.nccl_stream()));
    self.sync();
    EXPECT_TRUE(data.host() == expected) << count << " elements";
}

void exchange(Rank& self, size_t count) {
    Device<int> out(std::vector<int>(count, self.rank)), in(std::vector<int>(count, -1));
    const int next = (self.rank + 1) % self.nranks;
    const int before = (self.rank + self.nranks - 1) % self.nranks;
    NC(ncclGroupStart());
    NC(ncclSend(out.get(), count, ncclInt32, next, self.comm, self.nccl_stream()));
    NC(ncclRecv(in.get(), count, ncclInt32, before, self.comm, self.nccl_stream()));
    NC(ncclGroupEnd());
    self.sync();
    EXPECT_TRUE(in.host() == std::vector<int>(count, before)) << count << " elements";
}

// A ready communicator on a device of its own; config may be NULL.
void join(Process& process, Rank& self, ncclConfig_t* config) {
    use_device(process.rank);
    CU(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING));
    const ncclUniqueId id = process.unique_id();
    NC(ncclCommInitRankConfig(&self.comm, process.nranks, id, process.rank, config));
}

class Plugins : public ::testing::Test {
protected:
    Plugins() {
        set("NCCL_NET_PLUGIN", SOFTNCCL_TEST_PLUGINS "/libnccl-net-checking.so");
        set("SOFTNET_CHECK_LOG", log_);
        set("NCCL_DEBUG", "WARN");
    }
    ~Plugins() override { unlink(log_.c_str()); }

    void set(const std::string& name, const std::string& value) {
        options_.environment[name] = value;
    }

    // Two ranks run the body with a communicator; the plugin's log.
    std::string run(const std::function<void(Rank&)>& body, ncclConfig_t* config = nullptr) {
        unlink(log_.c_str());
        const auto outcome = run_processes(
            2,
            [&](Process& process) {
                Rank self{process.rank, process.nranks, nullptr, nullptr};
                join(process, self, config);
                if (self.comm == nullptr) {
                    return 2;
                }
                body(self);
                EXPECT_EQ(ncclCommDestroy(self.comm), ncclSuccess);
                return 0;
            },
            options_);
        EXPECT_TRUE(outcome.good()) << outcome.text();
        std::ifstream file(log_);
        std::stringstream text;
        text << file.rdbuf();
        EXPECT_THAT(text.str(), Not(HasSubstr("violation")));
        return text.str();
    }

    // The plugin's calls in each of the two ranks, as SOFTNET_CHECK_CALLS has them.
    std::vector<std::string> calls_of_ranks(const std::function<void(Rank&)>& body) {
        std::vector<std::string> all;
        options_.of_rank = {{{"SOFTNET_CHECK_CALLS", log_ + ".0"}},
                            {{"SOFTNET_CHECK_CALLS", log_ + ".1"}}};
        run(body);
        options_.of_rank = {};
        for (const char* rank : {".0", ".1"}) {
            std::ifstream file(log_ + rank);
            std::stringstream text;
            text << file.rdbuf();
            all.push_back(text.str());
            unlink((log_ + rank).c_str());
        }
        return all;
    }

    static size_t count(const std::string& text, const std::string& what) {
        size_t n = 0;
        for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
            ++n;
        }
        return n;
    }

    struct Received {
        size_t to_flush, flushed, early, largest, deepest, consumed, unconsumed, junk;
    };
    static std::vector<Received> receivers(const std::string& text) {
        static const std::regex line(
            "closeRecv after (\\d+) to flush, (\\d+) flushed, (\\d+) early, largest (\\d+), "
            "deepest "
            "(\\d+), (\\d+) consumed, (\\d+) not, (\\d+) with junk");
        std::vector<Received> all;
        for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) {
            all.push_back({std::stoul((*it)[1]), std::stoul((*it)[2]), std::stoul((*it)[3]),
                           std::stoul((*it)[4]), std::stoul((*it)[5]), std::stoul((*it)[6]),
                           std::stoul((*it)[7]), std::stoul((*it)[8])});
        }
        return all;
    }

    Options options_;
    const std::string log_ =
        ::testing::TempDir() + "softnccl-plugins-" + std::to_string(getpid()) + ".log";
};

void exercise(Rank& self) {
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{700001}}) {
        all_reduce(self, count);
        exchange(self, count);
    }
    exchange(self, 0);
}

TEST_F(Plugins, OfEveryVersionCarryEverything) {
    set("SOFTNET_CHECK_NULLS", "4");
    for (int version = 6; version <= 12; ++version) {
        set("SOFTDEV_NET_ABI", std::to_string(version));
        for (const char* protocol : {"Simple", "LL", "LL128"}) {
            set("NCCL_PROTO", protocol);
            const std::string log = run(exercise);
            EXPECT_EQ(count(log, "init v" + std::to_string(version) + " "), 2u) << log;
            EXPECT_EQ(count(log, "unload"), 2u) << log;
            EXPECT_EQ(count(log, "finalize"), version >= 11 ? 2u : 0u) << log;
        }
    }
}

TEST_F(Plugins, OfOldFilesAreTakenByTheirNewestVersion) {
    set("NCCL_NET_PLUGIN", SOFTNCCL_TEST_PLUGINS "/libnccl-net-checkold.so");
    EXPECT_EQ(count(run(exercise), "init v8 "), 2u);
}

TEST_F(Plugins, GetTheTrafficClassWhereTheirVersionHasIt) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.trafficClass = 0x4c01;
    const auto little = [](Rank& self) { all_reduce(self, 10); };
    EXPECT_EQ(count(run(little, &config), "traffic class 19457"), 2u) << "v11: one init each";
    set("SOFTDEV_NET_ABI", "10");
    set("SOFTDEV_NCCL_VERSION", "22705");
    EXPECT_GE(count(run(little, &config), "connect traffic class 19457"), 2u);
}

TEST_F(Plugins, AreToldWhatTransfersAreFor) {
    set("NCCL_ALGO", "Ring");
    set("NCCL_PROTO", "Simple");
    const auto body = [](Rank& self) {
        all_reduce(self, 100000);
        all_reduce(self, 100000);
        exchange(self, 1000);
    };
    set("NCCL_SET_THREAD_NAME", "1");
    const std::string log = run(body);
    // Before each poll of connect and accept: both directions, for any operation, or messages only.
    EXPECT_THAT(log, HasSubstr("setNetAttr on NCCL Service  0 op ffffffff algo ffffffff proto "
                               "ffffffff send 2,1,2,1 recv 2,1,2,1"));
    EXPECT_THAT(log, HasSubstr("setNetAttr on NCCL Service  1 op 7c0 algo ffffffff proto ffffffff "
                               "send 2,1,2,1 recv 2,1,2,1"));
    EXPECT_GE(count(log, "setNetAttr on NCCL Service"), 16u) << "8 connections of each rank";
    // Before the transfers of an operation, when they differ from the last ones; the other
    // direction stays as it was, as do algorithm and protocol where a message follows a collective.
    EXPECT_THAT(log, HasSubstr("setNetAttr on NCCL Progress 0 op 10 algo 2 proto 4 send "));
    EXPECT_THAT(log, HasSubstr("send 1,1,2,2 recv 1,1,2,2"));
    EXPECT_THAT(log, HasSubstr(" op 40 "));
    EXPECT_THAT(log, HasSubstr(" op 80 "));
    EXPECT_THAT(log, Not(HasSubstr("-1,")));
    EXPECT_LT(count(log, "setNetAttr on NCCL Progress"), 40u) << "on change only";
    set("SOFTDEV_NET_ABI", "10");
    EXPECT_EQ(count(run(body), "setNetAttr"), 0u) << "v10 has no such call";
}

TEST_F(Plugins, AreToldWhatIsConsumedAndMindNoJunk) {
    set("NCCL_PROTO", "Simple");
    size_t junk = 0;
    for (const Received& r : receivers(run(exercise))) {
        EXPECT_GT(r.consumed, 0u);
        EXPECT_EQ(r.unconsumed, 0u);
        junk += r.junk;
    }
    EXPECT_GT(junk, 0u) << "nobody clears a request";
    set("SOFTDEV_NET_ABI", "6");
    for (const Received& r : receivers(run(exercise))) {
        EXPECT_EQ(r.consumed, 0u) << "v6 has no such call";
    }
}

TEST_F(Plugins, AreMadeAndEndedOnTheCallersThread) {
    for (const char* version : {"22809", "22705"}) {
        set("SOFTDEV_NCCL_VERSION", version);
        for (const std::string& calls : calls_of_ranks([](Rank& self) { all_reduce(self, 10); })) {
            // ncclCommInitRankConfig of 2.27 has a thread, and asks twice for the devices.
            const bool newer = version == std::string("22809");
            EXPECT_EQ(count(calls, "main init"), newer ? 1u : 0u) << calls;
            EXPECT_EQ(count(calls, "main devices"), newer ? 1u : 0u) << calls;
            EXPECT_EQ(count(calls, " devices\n"), newer ? 1u : 2u) << calls;
            EXPECT_EQ(count(calls, "main listen"), 0u) << calls;
        }
    }
}

TEST_F(Plugins, AreCalledInNcclsOrder) {
    for (const std::string& calls : calls_of_ranks([](Rank& self) { all_reduce(self, 100000); })) {
        EXPECT_LT(calls.rfind(" listen "), calls.find(" accept ")) << "all listen first";
        EXPECT_LT(calls.rfind(" listen "), calls.find(" connect ")) << "all listen first";
        EXPECT_LT(calls.find(" regMr R0 524288"), calls.find(" regMr R0 4915200")) << "LL first";
        EXPECT_LT(calls.find(" regMr R0 4915200"), calls.find(" regMr R0 4194304"))
            << "Simple last";
        EXPECT_NE(calls.find(" regMr R0 4194304"), calls.npos);
        EXPECT_LT(calls.rfind(" close R"), calls.find(" close S")) << "receives first";
        EXPECT_NE(calls.find(" close S"), calls.npos);
    }
}

TEST_F(Plugins, ForDeviceMemoryAreAskedToFlushIt) {
    set("SOFTNET_CHECK_GDR", "1");
    set("NCCL_ALGO", "Ring");
    struct Case {
        const char* protocol;
        const char* level;
        bool flushes;
    };
    for (const Case& one : {Case{"Simple", "PXB", true}, Case{"LL", "PXB", false},
                            Case{"LL128", "PXB", false}, Case{"Simple", "LOC", false}}) {
        set("NCCL_PROTO", one.protocol);
        set("NCCL_NET_GDR_LEVEL", one.level);
        size_t flushed = 0;
        for (const Received& r : receivers(run([](Rank& self) { all_reduce(self, 700001); }))) {
            EXPECT_TRUE(!one.flushes || r.flushed == r.to_flush)
                << r.to_flush << " to flush, " << r.flushed << " flushed";
            flushed += r.flushed;
        }
        EXPECT_EQ(flushed > 0, one.flushes) << one.protocol << " " << one.level;
    }
}

TEST_F(Plugins, MayCompleteFlaggedReceivesEarly) {
    set("SOFTNET_CHECK_EARLY", "1");
    for (const char* protocol : {"LL", "LL128", "Simple"}) {
        for (const char* allowed : {"1", "0"}) {
            set("NCCL_PROTO", protocol);
            set("NCCL_NET_OPTIONAL_RECV_COMPLETION", allowed);
            size_t early = 0;
            for (const Received& r : receivers(run(exercise))) {
                early += r.early;
            }
            EXPECT_EQ(early > 0, std::string(protocol) != "Simple" && *allowed == '1')
                << protocol << " " << allowed;
        }
    }
}

// Slices and depths of every protocol: facts of NCCL that plugins are built around.
TEST_F(Plugins, GetNcclsSlicesAndDepths) {
    struct Case {
        const char* algorithm;
        const char* protocol;
        size_t largest;
        size_t deepest;
    };
    for (const Case& one : {Case{"Ring", "Simple", 1 << 20, 4},
                            Case{"Tree", "Simple", 512 << 10, 8}, Case{"Ring", "LL", 64 << 10, 8},
                            Case{"Ring", "LL128", 614400, 8}, Case{"Tree", "LL128", 614400, 8}}) {
        set("NCCL_ALGO", one.algorithm);
        set("NCCL_PROTO", one.protocol);
        size_t largest = 0;
        size_t deepest = 0;
        for (const Received& r : receivers(run([](Rank& self) { all_reduce(self, 8 << 20); }))) {
            largest = std::max(largest, r.largest);
            deepest = std::max(deepest, r.deepest);
        }
        EXPECT_EQ(largest, one.largest) << one.algorithm << " " << one.protocol;
        EXPECT_EQ(deepest, one.deepest) << one.algorithm << " " << one.protocol;
    }
    for (const Received& r : receivers(run([](Rank& self) { exchange(self, 4 << 20); }))) {
        EXPECT_EQ(r.largest, size_t{128} << 10);
        EXPECT_EQ(r.deepest, 8u);
    }
}

TEST_F(Plugins, GetTheConnectionsPerPeerThatAreAskedFor) {
    const auto body = [](Rank& self) {
        exchange(self, 1 << 20);
        exchange(self, 3);
    };
    set("NCCL_MIN_NCHANNELS", "4");
    for (const int channels : {1, 2, 4}) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.nChannelsPerNetPeer = channels;
        const std::string log = run(body, channels == 2 ? nullptr : &config);
        EXPECT_EQ(count(log, " accept\n"), 2 * static_cast<size_t>(channels)) << log;
    }
    set("NCCL_NCHANNELS_PER_NET_PEER", "3");
    EXPECT_EQ(count(run(body), " accept\n"), 8u) << "a power of two";
    set("NCCL_MIN_NCHANNELS", "1");
    EXPECT_EQ(count(run(body), " accept\n"), 4u) << "no more than there are channels";
}

TEST_F(Plugins, AreClosedAfterTheLastCommunicatorAndOpenedAgain) {
    const std::string log = run([](Rank& self) {
        all_reduce(self, 100);
        ncclComm_t child = nullptr;
        NC(ncclCommSplit(self.comm, 0, self.rank, &child, nullptr));
        NC(ncclCommDestroy(self.comm));
        self.comm = child;
        all_reduce(self, 100);  // the file is still there
        ncclUniqueId id = {};
        Device<ncclUniqueId> shared(std::vector<ncclUniqueId>{id});
        if (self.rank == 0) {
            NC(ncclGetUniqueId(&id));
            shared.set({id});
        }
        NC(ncclBroadcast(shared.get(), shared.get(), sizeof id, ncclInt8, 0, self.comm,
                         self.nccl_stream()));
        self.sync();
        id = shared.host()[0];
        NC(ncclCommDestroy(self.comm));  // the last one
        NC(ncclCommInitRank(&self.comm, self.nranks, id, self.rank));
        all_reduce(self, 100);
    });
    EXPECT_EQ(count(log, "init v11"), 6u) << log;
    EXPECT_EQ(count(log, "finalize"), 6u) << log;
    EXPECT_EQ(count(log, "unload"), 4u) << log;
}

}  // namespace
}  // namespace softdev::test
