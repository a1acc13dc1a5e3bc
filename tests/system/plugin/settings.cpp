// SPDX-License-Identifier: Apache-2.0
// How the plugin answers to settings, right and wrong: each case is a process of its own that loads
// the product with dlopen; what it says must be one clear line.
//
// usage: settings LIBRARY
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "deft/abi/net.h"

namespace {

struct Case {
    const char* name;
    std::vector<std::pair<const char*, const char*>> environment;
    bool init_works;
    int devices;
    std::vector<const char*> says;  // all of these, in one line
};

// Runs one case; its exit status tells init's and devices' results.
[[noreturn]] void child(const char* library, const Case& test) {
    for (const char* name : {"DEFT_INTERFACES", "NCCL_SOCKET_IFNAME", "DEFT_MODE", "DEFT_LOG",
                             "DEFT_LINK_TIMEOUT", "DEFT_CONF", "DEFT_REQUIRE"}) {
        unsetenv(name);
    }
    for (const auto& [name, value] : test.environment) {
        setenv(name, value, 1);
    }
    void* object = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    const auto* net = object == nullptr
                          ? nullptr
                          : static_cast<const deft_net_v9_t*>(dlsym(object, "ncclNetPlugin_v9"));
    if (net == nullptr) {
        _exit(100);
    }
    if (net->init(nullptr) != 0) {
        _exit(50);
    }
    int devices = -1;
    if (net->devices(&devices) != 0) {
        _exit(60);
    }
    // NCCL 2.28 keeps the context of a plugin that it ends because there are no devices.
    const auto* newest = static_cast<const deft_net_v12_t*>(dlsym(object, "ncclNetPlugin_v12"));
    deft_net_comm_config_t config{};
    void* context = nullptr;
    if (newest == nullptr || newest->init(&context, 1, &config, nullptr, nullptr) != 0 ||
        (context != nullptr) != (devices > 0) || newest->finalize(context) != 0) {
        _exit(70);
    }
    _exit(devices);
}

bool run(const char* library, const Case& test) {
    int output[2];
    if (pipe(output) != 0) {
        return false;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(output[1], STDERR_FILENO);
        close(output[0]);
        close(output[1]);
        child(library, test);
    }
    close(output[1]);
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = read(output[0], buffer, sizeof(buffer))) > 0;) {
        text.append(buffer, static_cast<std::size_t>(got));
    }
    close(output[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    const int expected = test.init_works ? test.devices : 50;
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == expected;
    bool said = test.says.empty();
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        bool all = !test.says.empty();
        for (const char* word : test.says) {
            all = all && line.find(word) != std::string::npos;
        }
        if (all) {
            said = true;
        }
        at = end + 1;
    }
    good = good && said;
    std::printf("%s: %s\n", good ? "ok" : "FAILED", test.name);
    if (!good) {
        std::printf("  status %d, expected exit %d; it said:\n%s\n", status, expected,
                    text.c_str());
    }
    return good;
}

// `file`: of settings.
std::vector<Case> all_cases(const char* file) {
    return {
        {"loopback named", {{"NCCL_SOCKET_IFNAME", "lo"}}, true, 1, {}},
        {"two addresses, one paced",
         {{"DEFT_INTERFACES", "127.0.0.2@1gbit,127.0.0.3"}},
         true,
         1,
         {}},
        {"switched off", {{"DEFT_MODE", "off"}, {"NCCL_SOCKET_IFNAME", "lo"}}, true, 0, {}},
        {"missing interface",
         {{"DEFT_INTERFACES", "lo,nosuch0"}},
         false,
         0,
         {"DEFT_INTERFACES=lo,nosuch0", "nosuch0", "this host has: ", "lo", "unset the variable"}},
        {"missing interface in NCCL's variable",
         {{"NCCL_SOCKET_IFNAME", "=nosuch0"}},
         false,
         0,
         {"NCCL_SOCKET_IFNAME", "this host has: "}},
        {"rate that is none",
         {{"DEFT_INTERFACES", "127.0.0.2@fast"}},
         false,
         0,
         {"127.0.0.2@fast", "gbit"}},
        {"malformed duration",
         {{"DEFT_LINK_TIMEOUT", "soon"}, {"NCCL_SOCKET_IFNAME", "lo"}},
         false,
         0,
         {"DEFT_LINK_TIMEOUT", "soon"}},
        {"required, and no hooks",
         {{"DEFT_REQUIRE", "1"}, {"NCCL_SOCKET_IFNAME", "lo"}},
         true,
         1,
         {"DEFT_MODE=exact and DEFT_REQUIRE=1 have no effect", "LD_PRELOAD"}},
        {"a mode from a file, and no hooks",
         {{"DEFT_CONF", file}, {"NCCL_SOCKET_IFNAME", "lo"}},
         true,
         1,
         {"DEFT_MODE=observe has no effect", "LD_PRELOAD"}},
        {"unknown variable is said, and harmless",
         {{"DEFT_INTERFACE", "lo"}, {"NCCL_SOCKET_IFNAME", "lo"}},
         true,
         1,
         {"DEFT_INTERFACE", "DEFT_INTERFACES"}},
    };
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        return 2;
    }
    char file[] = "/tmp/deft-settings-XXXXXX";
    const int conf = mkstemp(file);
    if (conf < 0 || dprintf(conf, "DEFT_MODE=observe\n") < 0) {
        return 1;
    }
    close(conf);
    bool good = true;
    for (const Case& test : all_cases(file)) {
        good = run(arguments[1], test) && good;
    }
    unlink(file);
    return good ? 0 : 1;
}
