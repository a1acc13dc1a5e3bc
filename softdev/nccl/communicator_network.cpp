// SPDX-License-Identifier: Apache-2.0
// How a communicator comes to its network: the plugin, and the devices that carry its channels.
#include <algorithm>

#include "softdev/nccl/communicator.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"
#include "softdev/net/logger.h"

namespace softdev::nccl {
namespace {

net::Properties properties_of(net::CommNet& net, int device) {
    net::Properties properties;
    if (net->get_properties(device, &properties) != 0) {
        throw Error(ncclInternalError, format("getProperties of %s failed", net->name()));
    }
    return properties;
}

// The topology stage asks for every device. Channels take turns on all that are fast enough for a
// channel; NCCL's search leaves out a device of less than about half the fastest one's speed.
void choose_devices(Resources& resources) {
    net::CommNet& net = resources.net;
    std::vector<int> speeds;
    for (int i = 0; i < net.devices(); ++i) {
        const net::Properties properties = properties_of(net, i);
        if (properties.maxCollBytes == 0 || properties.maxP2pBytes == 0) {
            throw Error(ncclInternalError,
                        format("%s device %d allows messages of 0 bytes only", net->name(), i));
        }
        speeds.push_back(properties.speed);
    }
    const int fastest = *std::max_element(speeds.begin(), speeds.end());
    for (size_t i = 0; i < speeds.size(); ++i) {
        if (2L * speeds[i] >= fastest) {
            resources.devices.push_back(static_cast<int>(i));
            resources.mbits += speeds[i];
        }
    }
}

}  // namespace

// After the network, in whose library it may be. As far as is known here a host has one rank.
void Communicator::open_tuner() {
    const auto ranks = static_cast<size_t>(nranks);
    const int result = net::CommTuner::open(hash, ranks, ranks, &tuner);
    if (result != 0) {
        throw Error(static_cast<ncclResult_t>(result), "init of the tuner failed");
    }
}

void Communicator::open_network(std::shared_ptr<Resources> shared) {
    if (shared != nullptr) {
        std::lock_guard lock(parts_mutex_);
        resources_ = std::move(shared);
        return;
    }
    auto fresh = std::make_shared<Resources>();
    net::CommRequest request;
    request.comm_id = hash;
    request.net_name = config.net_name.empty() ? nullptr : config.net_name.c_str();
    request.traffic_class = config.traffic_class == NCCL_CONFIG_UNDEF_INT
                                ? DEFT_NET_TRAFFIC_CLASS_UNDEF
                                : config.traffic_class;
    request.logger = plugin_logger;
    if (log_enabled(kLogVersion, kSubsysAll)) {
        net::set_logger(plugin_logger);  // else that room says its warnings on stderr
    }
    const int result = net::NetRegistry::process().open(request, &fresh->net);
    if (result != 0) {
        throw Error(static_cast<ncclResult_t>(result),
                    format("no usable network%s%s; NCCL_NET=%s, NCCL_NET_PLUGIN=%s",
                           request.net_name == nullptr ? "" : " named ", config.net_name.c_str(),
                           env_text("NCCL_NET").value_or("(not set)").c_str(),
                           env_text("NCCL_NET_PLUGIN").value_or("(not set)").c_str()));
    }
    // GPU direct, as NCCL decides it where the NIC is near; NCCL_NET_GDR_LEVEL=LOC says no. The
    // devices of one plugin are taken to be alike, and the first is asked.
    const net::Properties chosen = properties_of(fresh->net, 0);
    // 2.27 asks for their number once more before it asks for each, 2.30 after that, 2.28 not at
    // all.
    const auto count_again = [&] {
        int again = 0;
        if (fresh->net->devices(&again) != 0) {
            throw Error(ncclInternalError, format("devices of %s failed", fresh->net->name()));
        }
    };
    if (nccl_version() < 22800) {
        count_again();
    }
    choose_devices(*fresh);
    if (nccl_version() >= 23000) {
        count_again();
    }
    const std::string level = env_text("NCCL_NET_GDR_LEVEL").value_or("");
    fresh->memory.device =
        (chosen.ptrSupport & DEFT_NET_PTR_CUDA) != 0 && level != "LOC" && level != "0";
    // Before Hopper a GPU may see a flag before the data written ahead of it.
    int major = 0;
    cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    fresh->memory.flush = fresh->memory.device && (chosen.forceFlush != 0 || major < 9 ||
                                                   env_int("NCCL_NET_FORCE_FLUSH", 0) != 0);
    fresh->memory.context = context;
    log_info(kSubsysInit | kSubsysNet, "Using network %s%s", fresh->net->name(),
             fresh->memory.device ? " with GPU Direct" : "");
    fresh->service.start(&fresh->net, &fresh->attributes, device);
    fresh->progress.start(&fresh->net, &fresh->attributes, device);
    std::lock_guard lock(parts_mutex_);
    resources_ = std::move(fresh);
}

}  // namespace softdev::nccl
