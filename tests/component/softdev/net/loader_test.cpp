// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/plugin_loader.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "softdev/net/rules_driver.h"
#include "tests/component/softdev/net/captured_log.h"
#include "tests/component/softdev/net/environment.h"

namespace softdev::net {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Loader : public testing::Test {
protected:
    Loader() {
        environment_.set("NCCL_SOCKET_IFNAME", "lo");
        environment_.set("SOFTNET_CHECK_LOG", plugin_log_.path());
        for (const char* name :
             {"NCCL_NET", "NCCL_NET_PLUGIN", "SOFTDEV_NCCL_VERSION", "SOFTDEV_NET_ABI",
              "NCCL_NET_PLUGIN_REF_COUNT", "SOFTNET_CHECK_FAIL", "SOFTNET_CHECK_NULLS"}) {
            environment_.unset(name);
        }
    }

    // Opens for one communicator; "" if refused, else "name vN".
    std::string open(NetRegistry& registry, CommNet* net, const char* net_name = nullptr) {
        CommRequest request;
        request.comm_id = 0x7b;
        request.net_name = net_name;
        request.traffic_class = 3;
        result_ = registry.open(request, net);
        if (result_ != DEFT_NET_SUCCESS) {
            return "";
        }
        return std::string((*net)->name()) + " v" + std::to_string((*net)->abi());
    }
    std::string open_once(const char* net_name = nullptr) {
        NetRegistry registry;
        CommNet net;
        return open(registry, &net, net_name);
    }

    Environment environment_;
    CapturedLog log_;
    PluginLog plugin_log_;
    int result_ = 0;
};

TEST_F(Loader, WithoutAPluginSocketIsUsedSilently) {
    EXPECT_EQ(open_once(), "Socket v12");
    EXPECT_THAT(log_.warnings(), IsEmpty());
}

TEST_F(Loader, EmptyAndNoneMeanNoPlugin) {
    for (const char* value : {"", "none", "NoNe"}) {
        environment_.set("NCCL_NET_PLUGIN", value);
        EXPECT_EQ(open_once(), "Socket v12");
    }
    EXPECT_THAT(log_.warnings(), IsEmpty());
}

TEST_F(Loader, AMissingFileIsSaidOnceAndSocketIsUsed) {
    environment_.set("NCCL_NET_PLUGIN", "nosuch");
    NetRegistry registry;
    CommNet first;
    CommNet second;
    EXPECT_EQ(open(registry, &first), "Socket v12");
    EXPECT_EQ(open(registry, &second), "Socket v12");
    EXPECT_THAT(log_.warnings(),
                ElementsAre(AllOf(HasSubstr("Could not find: nosuch"),
                                  HasSubstr("libnccl-net-nosuch.so: cannot open"))));
}

TEST_F(Loader, ALibraryWithoutTablesIsSaidAndClosed) {
    environment_.set("NCCL_NET_PLUGIN", "libm.so.6");
    EXPECT_EQ(open_once(), "Socket v12");
    EXPECT_THAT(log_.warnings(),
                ElementsAre(AllOf(HasSubstr("libm.so.6"), HasSubstr("ncclNetPlugin_v11 to v6"))));
}

TEST_F(Loader, NamesPathsAndSonamesAreFound) {
    for (const char* name :
         {"checking", "libnccl-net-checking.so", PLUGIN_DIR "/libnccl-net-checking.so"}) {
        environment_.set("NCCL_NET_PLUGIN", name);
        NetRegistry registry;
        CommNet net;
        EXPECT_EQ(open(registry, &net), "Checking v11") << name;
        EXPECT_THAT(net->file(), HasSubstr("/libnccl-net-checking.so"));
        EXPECT_TRUE(net->external());
    }
    EXPECT_THAT(log_.warnings(), IsEmpty());
}

TEST_F(Loader, TheNewestTableTheReleaseKnowsIsTaken) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    const std::pair<const char*, const char*> releases[] = {
        {"21304", "Checking v6"},  {"21903", "Checking v7"},  {"22005", "Checking v8"},
        {"22403", "Checking v9"},  {"22602", "Checking v10"}, {"22705", "Checking v10"},
        {"22809", "Checking v11"}, {"23007", "Checking v12"}};
    for (const auto& [release, expected] : releases) {
        environment_.set("SOFTDEV_NCCL_VERSION", release);
        EXPECT_EQ(open_once(), expected);
    }
    environment_.set("NCCL_NET_PLUGIN", "checkold");
    environment_.set("SOFTDEV_NCCL_VERSION", "23007");
    EXPECT_EQ(open_once(), "CheckOld v8");
    EXPECT_THAT(log_.warnings(), IsEmpty());
}

TEST_F(Loader, OneVersionCanBeForced) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    for (int abi = 6; abi <= 12; ++abi) {
        environment_.set("SOFTDEV_NET_ABI", std::to_string(abi));
        EXPECT_EQ(open_once(), "Checking v" + std::to_string(abi));
    }
    environment_.set("NCCL_NET_PLUGIN", "checkold");
    EXPECT_EQ(open_once(), "Socket v12");
    EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("none of the symbols ncclNetPlugin_v12 ")));
}

TEST_F(Loader, WrongSettingsAreRefused) {
    for (const auto& [name, value] : {std::pair<const char*, const char*>{"SOFTDEV_NET_ABI", "5"},
                                      {"SOFTDEV_NET_ABI", "11x"},
                                      {"SOFTDEV_NCCL_VERSION", "2.28"}}) {
        Environment own;
        own.set(name, value);
        EXPECT_EQ(open_once(), "");
        EXPECT_EQ(result_, DEFT_NET_INVALID_USAGE);
        EXPECT_THAT(log_.warnings().back(), HasSubstr(std::string(name) + "=" + value));
    }
}

TEST_F(Loader, FailingPluginsAreSaidClosedAndPassedOver) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    for (const char* what : {"init", "devices", "nodevices"}) {
        const CapturedLog log;
        const size_t unloads = plugin_log_.count("unload");
        environment_.set("SOFTNET_CHECK_FAIL", std::string("Checking:") + what);
        NetRegistry registry;
        CommNet first;
        CommNet second;
        EXPECT_EQ(open(registry, &first), "Socket v12") << what;
        EXPECT_EQ(plugin_log_.count("unload"), unloads + 1) << what;
        EXPECT_EQ(open(registry, &second), "Socket v12") << what;
        EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr("Checking from /"),
                                                      HasSubstr("ncclS"), HasSubstr("(v11)"))))
            << what;
    }
    EXPECT_EQ(plugin_log_.count("violation"), 0u);
}

TEST_F(Loader, FinalizeAfterAFailedInitIsAMatterOfTheRelease) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    environment_.set("SOFTNET_CHECK_FAIL", "Checking:init");
    EXPECT_EQ(open_once(), "Socket v12");
    EXPECT_EQ(plugin_log_.count("finalize"), 1u);
    environment_.set("SOFTDEV_NCCL_VERSION", "23007");
    EXPECT_EQ(open_once(), "Socket v12");
    EXPECT_EQ(plugin_log_.count("finalize"), 1u);
}

TEST_F(Loader, TheFirstUsableOfAListWins) {
    environment_.set("NCCL_NET_PLUGIN", "nosuch,checking,checktwo");
    EXPECT_EQ(open_once(), "Checking v11");
    EXPECT_EQ(plugin_log_.count("CheckTwo"), 0u);  // not even opened
    environment_.set("SOFTNET_CHECK_FAIL", "Checking:devices");
    EXPECT_EQ(open_once(), "CheckTwo v11");
    // A list was one odd file name before 2.27.
    environment_.set("SOFTDEV_NCCL_VERSION", "22602");
    EXPECT_EQ(open_once(), "Socket v12");
}

TEST_F(Loader, OneAssignedExternalDisablesTheOthers) {
    environment_.set("NCCL_NET_PLUGIN", "checking,checktwo");
    NetRegistry registry;
    CommNet net;
    EXPECT_EQ(open(registry, &net, "checktwo"), "CheckTwo v11");
    EXPECT_EQ(plugin_log_.count("Checking init"), 0u) << "2.28 starts no other than the named one";
    EXPECT_EQ(plugin_log_.count("Checking unload"), 1u);
    CommNet other;
    EXPECT_EQ(open(registry, &other, "Checking"), "");
    EXPECT_EQ(result_, DEFT_NET_INVALID_USAGE);
    EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("\"Checking\""), HasSubstr("netName"),
                                                   HasSubstr("available: CheckTwo, Socket"))));
    EXPECT_EQ(open(registry, &other, "Socket"), "Socket v12");
    EXPECT_EQ(open(registry, &other), "CheckTwo v11");
}

TEST_F(Loader, BeforeTwentyEightEveryPluginUpToTheNamedOneIsStarted) {
    environment_.set("SOFTDEV_NCCL_VERSION", "22705");
    environment_.set("NCCL_NET_PLUGIN", "checking");
    NetRegistry registry;
    CommNet net;
    EXPECT_EQ(open(registry, &net, "Socket"), "Socket v12");
    EXPECT_EQ(plugin_log_.count("Checking init"), 1u);
}

TEST_F(Loader, NcclNetOverridesAndIsReadEachTime) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    NetRegistry registry;
    CommNet net;
    environment_.set("NCCL_NET", "SOCKET");
    EXPECT_EQ(open(registry, &net), "Socket v12");
    EXPECT_EQ(open(registry, &net, "Checking"), "Socket v12");
    environment_.set("NCCL_NET", "checking");
    EXPECT_EQ(open(registry, &net, "Socket"), "Checking v11");
    environment_.set("NCCL_NET", "IB");
    EXPECT_EQ(open(registry, &net), "");
    EXPECT_EQ(result_, DEFT_NET_INVALID_USAGE);
    EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("\"IB\" (NCCL_NET)"),
                                                   HasSubstr("available: Checking, Socket"))));
}

TEST_F(Loader, ClosedAfterTheLastCommunicatorAndOpenedAgain) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    NetRegistry registry;
    CommNet first;
    CommNet second;
    EXPECT_EQ(open(registry, &first), "Checking v11");
    EXPECT_EQ(open(registry, &second), "Checking v11");
    EXPECT_EQ(plugin_log_.count("devices"), 1u);
    EXPECT_EQ(plugin_log_.count("init v11 comm 7b traffic class 3"), 2u);
    EXPECT_EQ(first.release(), DEFT_NET_SUCCESS);
    EXPECT_EQ(plugin_log_.count("unload"), 0u);
    EXPECT_EQ(second.release(), DEFT_NET_SUCCESS);
    EXPECT_EQ(plugin_log_.count("finalize"), 2u);
    EXPECT_EQ(plugin_log_.count("unload"), 1u);
    EXPECT_EQ(open(registry, &first), "Checking v11");
    EXPECT_EQ(plugin_log_.count("devices"), 2u);
    first.release();
    EXPECT_EQ(plugin_log_.count("unload"), 2u);
}

TEST_F(Loader, AReferenceCountKeepsItOpen) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    environment_.set("NCCL_NET_PLUGIN_REF_COUNT", "1");
    NetRegistry registry;
    CommNet net;
    EXPECT_EQ(open(registry, &net), "Checking v11");
    net.release();
    EXPECT_EQ(plugin_log_.count("finalize"), 1u);
    EXPECT_EQ(plugin_log_.count("unload"), 0u);
    // Two references now; other tests want it closed.
    void* still = dlopen(PLUGIN_DIR "/libnccl-net-checking.so", RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(still, nullptr);
    dlclose(still);
    dlclose(still);
    EXPECT_EQ(plugin_log_.count("unload"), 1u);
}

TEST_F(Loader, OldTablesAreInitialisedOnce) {
    environment_.set("NCCL_NET_PLUGIN", "checkold");
    NetRegistry registry;
    CommNet first;
    CommNet second;
    EXPECT_EQ(open(registry, &first), "CheckOld v8");
    EXPECT_EQ(open(registry, &second), "CheckOld v8");
    EXPECT_EQ(plugin_log_.count("init v8"), 1u);
    first.release();
    EXPECT_EQ(open(registry, &first), "CheckOld v8");
    EXPECT_EQ(plugin_log_.count("init v8"), 1u);
    first.release();
    second.release();
    EXPECT_EQ(plugin_log_.count("finalize"), 0u);
    EXPECT_EQ(plugin_log_.count("unload"), 1u);
}

TEST_F(Loader, TwoPluginsOfOneOldVersionAreWarnedOf) {
    environment_.set("NCCL_NET_PLUGIN", "checking,checktwo");
    environment_.set("SOFTDEV_NET_ABI", "9");
    EXPECT_EQ(open_once("CheckTwo"), "CheckTwo v9");
    EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("one such plugin a process")));
}

TEST_F(Loader, StaticPluginFindsWhatIsLoadedGlobally) {
    environment_.set("NCCL_NET_PLUGIN", "STATIC_PLUGIN");
    EXPECT_EQ(open_once(), "Socket v12");
    EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("STATIC_PLUGIN has none of the symbols")));
    // In a process of its own: the search pins the library.
    const auto preloaded = [this](const char* name) {
        const bool loaded =
            dlopen(PLUGIN_DIR "/libnccl-net-checking.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
        environment_.set("NCCL_NET_PLUGIN", name);
        _exit(loaded && open_once() == "Checking v11" ? 0 : 1);
    };
    EXPECT_EXIT(preloaded("STATIC_PLUGIN"), testing::ExitedWithCode(0), "");
    EXPECT_EXIT(preloaded("static"), testing::ExitedWithCode(0), "");  // any prefix does
}

TEST_F(Loader, AdaptersRefuseWhatIntSizesCannotSay) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    char byte = 0;
    void* mhandle = nullptr;
    void* request = nullptr;
    for (int abi = 6; abi <= 8; ++abi) {
        environment_.set("SOFTDEV_NET_ABI", std::to_string(abi));
        NetRegistry registry;
        CommNet net;
        open(registry, &net);
        EXPECT_EQ(net->isend(nullptr, &byte, (size_t{1} << 30) + 1, 0, nullptr, nullptr, &request),
                  DEFT_NET_INTERNAL_ERROR);
        EXPECT_THAT(log_.warnings().back(), HasSubstr("isend of 1073741825 bytes"));
        if (abi < 8) {
            EXPECT_EQ(net->reg_mr(nullptr, &byte, size_t{1} << 31, DEFT_NET_PTR_HOST, &mhandle),
                      DEFT_NET_INTERNAL_ERROR);
            EXPECT_THAT(log_.warnings().back(), HasSubstr("regMr of 2147483648 bytes"));
        }
        Properties properties;
        ASSERT_EQ(net->get_properties(0, &properties), DEFT_NET_SUCCESS);
        EXPECT_EQ(properties.maxP2pBytes, size_t{1} << 30);
    }
    EXPECT_EQ(plugin_log_.count("violation"), 0u);
}

TEST_F(Loader, TrafficClassReachesConnectOfV10) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    RulesOptions options;
    options.traffic_class = 3;
    for (const char* release : {"22705", "22809"}) {
        environment_.set("SOFTDEV_NCCL_VERSION", release);
        environment_.set("SOFTDEV_NET_ABI", "10");
        for (const Scenario& scenario : rules_scenarios()) {
            if (std::string(scenario.name) == "empty_messages") {
                EXPECT_EQ(run_in_threads(scenario, options), "");
            }
        }
    }
    EXPECT_EQ(plugin_log_.count("connect traffic class 3"), 4u);
    EXPECT_EQ(plugin_log_.count("violation"), 0u);
}

TEST_F(Loader, ManyThreadsOpenAndRelease) {
    environment_.set("NCCL_NET_PLUGIN", "checking");
    NetRegistry registry;
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 20; ++i) {
                CommNet net;
                CommRequest request;
                wrong += registry.open(request, &net) != DEFT_NET_SUCCESS || !net->external();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(plugin_log_.count("init"), 160u);
    EXPECT_EQ(plugin_log_.count("finalize"), 160u);
    EXPECT_GE(plugin_log_.count("unload"), 1u);
    EXPECT_EQ(plugin_log_.count("violation"), 0u);
}

}  // namespace
}  // namespace softdev::net
