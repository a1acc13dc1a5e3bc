// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/plugin_loader.h"

#include <dlfcn.h>
#include <link.h>
#include <strings.h>

#include <cstdlib>
#include <utility>

#include "softdev/net/ib_ports.h"
#include "softdev/net/logger.h"
#include "softdev/net/net_bytes.h"
#include "softdev/net/plugin_names.h"
#include "softdev/net/socket_net.h"
#include "softdev/net/table_net.h"

namespace softdev::net {
namespace {

enum class State { LoadReady, InitReady, Enabled, Disabled, LoadFailed };

int no_profiler(void**, int, void*, int64_t, void*) {
    return DEFT_NET_SUCCESS;
}

std::string loaded_file(void* library, const std::string& fallback) {
    link_map* map = nullptr;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr &&
        map->l_name[0] != '\0') {
        return map->l_name;
    }
    return fallback;
}

}  // namespace

struct NetRegistry::Plugin {
    std::string name;  // as listed; "Socket" for the internal one
    bool external = true;
    bool named = true;  // false for the default libnccl-net.so, which may well be absent
    State state = State::LoadReady;
    void* library = nullptr;
    std::unique_ptr<Net> net;
    int device_count = 0;
    int users = 0;  // communicators assigned, plus NCCL_NET_PLUGIN_REF_COUNT
};

CommNet::CommNet(CommNet&& other) noexcept {
    *this = std::move(other);
}

CommNet& CommNet::operator=(CommNet&& other) noexcept {
    if (this != &other) {
        release();
        registry_ = std::exchange(other.registry_, nullptr);
        plugin_ = other.plugin_;
        net_ = std::exchange(other.net_, nullptr);
        context_ = std::exchange(other.context_, nullptr);
        devices_ = other.devices_;
    }
    return *this;
}

CommNet::~CommNet() {
    release();
}

int CommNet::release() {
    return registry_ != nullptr ? registry_->release(*this) : DEFT_NET_SUCCESS;
}

NetRegistry::NetRegistry() = default;

NetRegistry::~NetRegistry() {
    for (auto& plugin : plugins_) {
        if (plugin->users == 0) {
            unload(*plugin);
        }
    }
}

NetRegistry& NetRegistry::process() {
    // Never destroyed: communicators may be alive in other threads when the process ends.
    static NetRegistry* registry = new NetRegistry;
    return *registry;
}

void NetRegistry::read_environment() {
    environment_read_ = true;
    nccl_version_ = kDefaultNcclVersion;
    if (const char* text = std::getenv("SOFTDEV_NCCL_VERSION"); text != nullptr && *text != '\0') {
        nccl_version_ = parse_nccl_version(text, &environment_error_);
    }
    if (const char* text = std::getenv("SOFTDEV_NET_ABI"); text != nullptr && *text != '\0') {
        char* end = nullptr;
        const long value = std::strtol(text, &end, 10);
        if (*end != '\0' || value < kOldestAbi || value > kNewestAbi) {
            environment_error_ =
                std::string("SOFTDEV_NET_ABI=") + text + " is no plugin table version; 6 to 12 are";
        }
        forced_abi_ = static_cast<int>(value);
    }
    const char* listed = std::getenv("NCCL_NET_PLUGIN");
    std::vector<std::string> remarks;
    const std::vector<std::string> names = plugin_names(listed, nccl_version_, &remarks);
    for (const std::string& remark : remarks) {
        SOFTNET_WARN("%s", remark.c_str());
    }
    if (names.empty()) {
        SOFTNET_INFO("NET/Plugin: no external plugin (NCCL_NET_PLUGIN=%s)", listed);
    }
    int references = 0;
    if (const char* text = std::getenv("NCCL_NET_PLUGIN_REF_COUNT")) {
        references = std::atoi(text);
    }
    for (const std::string& name : names) {
        auto plugin = std::make_unique<Plugin>();
        plugin->name = name;
        plugin->named = listed != nullptr;
        plugin->users = references;
        plugins_.push_back(std::move(plugin));
    }
    if (!find_ib_ports().empty()) {
        add_internal("IB", ib_table());
    }
    add_internal("Socket", socket_table());
}

void NetRegistry::add_internal(const char* name, const deft_net_v12_t* table) {
    auto plugin = std::make_unique<Plugin>();
    plugin->name = name;
    plugin->external = false;
    plugin->state = State::InitReady;
    plugin->net = make_table_net(kNewestAbi, table, false, "(internal)", nccl_version_);
    plugins_.push_back(std::move(plugin));
}

// Opens the file and finds its newest table; says once what is wrong.
void NetRegistry::load(Plugin& plugin) {
    std::string failures;
    std::string opened;
    if (means_static_plugin(plugin.name, nccl_version_)) {
        opened = plugin.name;
        plugin.library = dlopen(nullptr, RTLD_NOW | RTLD_LOCAL);
    } else {
        for (const std::string& candidate : dlopen_candidates(plugin.name, nccl_version_)) {
            plugin.library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (plugin.library != nullptr) {
                opened = loaded_file(plugin.library, candidate);
                break;
            }
            const char* reason = dlerror();
            failures +=
                (failures.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : "?");
        }
    }
    if (plugin.library == nullptr) {
        plugin.state = State::LoadFailed;
        if (plugin.named) {
            SOFTNET_WARN("NET/Plugin: Could not find: %s (%s). Falling back to the next network.",
                         plugin.name.c_str(), failures.c_str());
        } else {
            SOFTNET_INFO("NET/Plugin: Could not find: %s. Using internal network plugin.",
                         plugin.name.c_str());
        }
        return;
    }
    std::vector<int> versions = abi_versions(nccl_version_);
    if (forced_abi_ != 0) {
        versions = {forced_abi_};
    }
    for (const int abi : versions) {
        const std::string symbol = "ncclNetPlugin_v" + std::to_string(abi);
        if (const void* table = dlsym(plugin.library, symbol.c_str())) {
            plugin.net = make_table_net(abi, table, true, opened, nccl_version_);
            break;
        }
        SOFTNET_INFO("NET/Plugin: Failed to find %s symbol in %s.", symbol.c_str(), opened.c_str());
    }
    if (plugin.net == nullptr) {
        SOFTNET_WARN(
            "NET/Plugin: %s has none of the symbols ncclNetPlugin_v%d%s%s that NCCL %d.%d "
            "looks for. Falling back to the next network.",
            opened.c_str(), versions.front(), versions.size() > 1 ? " to v" : "",
            versions.size() > 1 ? std::to_string(versions.back()).c_str() : "",
            nccl_version_ / 10000, nccl_version_ / 100 % 100);
        unload(plugin);
        plugin.state = State::LoadFailed;
        return;
    }
    const int abi = plugin.net->abi();
    if (abi <= 10) {
        for (const auto& other : plugins_) {
            if (other.get() != &plugin && other->external && other->net != nullptr &&
                other->net->abi() == abi) {
                SOFTNET_WARN(
                    "NET/Plugin: %s and %s both have v%d as their newest table; NCCL's "
                    "adapter holds one such plugin a process and would mix them up",
                    other->net->file().c_str(), opened.c_str(), abi);
            }
        }
    }
    SOFTNET_INFO("NET/Plugin: Loaded net plugin %s (v%d) from %s", plugin.net->name(), abi,
                 opened.c_str());
    plugin.state = State::InitReady;
}

// The plugin's init for one communicator and, the first time, devices. Failure disables it.
int NetRegistry::start(Plugin& plugin, const CommRequest& request, void** context) {
    CommConfig config{request.traffic_class};
    const deft_net_logger_t to = request.logger != nullptr ? request.logger : logger();
    const deft_net_profiler_t profiler =
        request.profiler != nullptr ? request.profiler : no_profiler;
    Net& net = *plugin.net;
    const std::string shown = std::string(net.name()) + " from " + net.file();
    int result = net.init(context, request.comm_id, &config, to, profiler);
    if (result != DEFT_NET_SUCCESS) {
        SOFTNET_WARN(
            "NET/Plugin: init of %s (v%d) failed with %s. Falling back to the next network.",
            shown.c_str(), net.abi(), result_text(result).c_str());
        if (nccl_version_ < 23000) {
            net.finalize(*context);  // NCCL up to 2.29 does this after a failed init
        }
    } else if (plugin.state == State::InitReady) {
        int count = 0;
        result = net.devices(&count);
        if (result != DEFT_NET_SUCCESS || count <= 0) {
            SOFTNET_WARN(
                "NET/Plugin: %s (v%d) gave %d devices and %s. Falling back to the next "
                "network.",
                shown.c_str(), net.abi(), count, result_text(result).c_str());
            result = result != DEFT_NET_SUCCESS ? result : DEFT_NET_SYSTEM_ERROR;
            net.finalize(*context);
        } else {
            plugin.device_count = count;
            plugin.state = State::Enabled;
        }
    }
    if (result != DEFT_NET_SUCCESS) {
        *context = nullptr;
        disable(plugin);
    }
    return result;
}

void NetRegistry::unload(Plugin& plugin) {
    if (!plugin.external) {
        return;
    }
    plugin.net.reset();
    if (plugin.library != nullptr) {
        dlclose(std::exchange(plugin.library, nullptr));
    }
}

void NetRegistry::disable(Plugin& plugin) {
    plugin.state = State::Disabled;
    if (plugin.users == 0) {
        unload(plugin);
    }
}

void NetRegistry::disable_other_externals(size_t assigned) {
    if (!plugins_[assigned]->external) {
        return;
    }
    for (size_t i = 0; i < plugins_.size(); ++i) {
        Plugin& other = *plugins_[i];
        if (i == assigned || !other.external || other.state == State::LoadFailed ||
            other.state == State::Disabled) {
            continue;
        }
        SOFTNET_INFO("NET/Plugin: %s is not used by this process: %s is", other.name.c_str(),
                     plugins_[assigned]->name.c_str());
        disable(other);
    }
}

int NetRegistry::open(const CommRequest& request, CommNet* out) {
    out->release();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!environment_read_) {
        read_environment();
    }
    if (!environment_error_.empty()) {
        SOFTNET_WARN("NET: %s", environment_error_.c_str());
        return DEFT_NET_INVALID_USAGE;
    }
    const char* wanted = std::getenv("NCCL_NET");
    const bool from_environment = wanted != nullptr && *wanted != '\0';
    if (!from_environment) {
        wanted = request.net_name;
    }
    if (wanted != nullptr && *wanted == '\0') {
        wanted = nullptr;
    }
    std::string available;
    for (size_t i = 0; i < plugins_.size(); ++i) {
        Plugin& plugin = *plugins_[i];
        if (plugin.state == State::LoadReady) {
            load(plugin);
        }
        if (plugin.state != State::InitReady && plugin.state != State::Enabled) {
            continue;
        }
        const bool fits = wanted == nullptr || strcasecmp(wanted, plugin.net->name()) == 0;
        const std::string name = plugin.net->name();
        void* context = nullptr;
        // From 2.28 on NCCL starts none but the one that is asked for.
        if ((fits || nccl_version_ < 22800) &&
            start(plugin, request, &context) != DEFT_NET_SUCCESS) {
            continue;
        }
        if (!fits) {
            available += (available.empty() ? "" : ", ") + name;
            if (nccl_version_ < 22800) {
                plugin.net->finalize(context);
            }
            continue;
        }
        ++plugin.users;
        disable_other_externals(i);
        out->registry_ = this;
        out->plugin_ = i;
        out->net_ = plugin.net.get();
        out->context_ = context;
        out->devices_ = plugin.device_count;
        SOFTNET_INFO("Using network %s", plugin.net->name());
        return DEFT_NET_SUCCESS;
    }
    if (wanted != nullptr) {
        SOFTNET_WARN("NET: no network is named \"%s\" (%s); available: %s", wanted,
                     from_environment ? "NCCL_NET" : "ncclConfig_t netName",
                     available.empty() ? "none" : available.c_str());
    } else {
        SOFTNET_WARN("NET: Failed to initialize any NET plugin");
    }
    return DEFT_NET_INVALID_USAGE;
}

std::string NetRegistry::external_file() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string file;
    for (const auto& plugin : plugins_) {
        if (plugin->external && plugin->library != nullptr && plugin->net != nullptr) {
            file = plugin->net->file();
        }
    }
    return file;
}

int NetRegistry::release(CommNet& comm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Plugin& plugin = *plugins_[comm.plugin_];
    const int result = comm.net_->finalize(comm.context_);
    if (result != DEFT_NET_SUCCESS) {
        SOFTNET_WARN("NET/%s: finalize failed with %s", comm.net_->name(),
                     result_text(result).c_str());
    }
    write_bytes_file();
    comm.registry_ = nullptr;
    comm.net_ = nullptr;
    comm.context_ = nullptr;
    if (--plugin.users == 0 && plugin.external) {
        SOFTNET_INFO("NET/Plugin: Closing %s after its last communicator", plugin.name.c_str());
        unload(plugin);
        // Not for a plugin that failed meanwhile: that stays switched off.
        if (plugin.state != State::Disabled) {
            plugin.state = State::LoadReady;
        }
    }
    return result;
}

}  // namespace softdev::net
