// SPDX-License-Identifier: Apache-2.0
#include "shim/control/networks.h"

#include <strings.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "base/presence.h"
#include "shim/cuda/execution.h"
#include "shim/executor/nccl.h"
#include "shim/settings/mode.h"
#include "shim/settings/networks.h"
#include "topology/rdma.h"

namespace deft::director {
namespace {

constexpr char kIb[] = "IB";
constexpr char kDeft[] = "deft";
constexpr char kNoNetworks[] = "none";
constexpr int kFirstNonblocking = 21400;  // communicators
constexpr int kFirstNccl = 21700;         // that lets a communicator name its network
constexpr int kFirstOrdered = 22600;      // that knows NCCL_LAUNCH_ORDER_IMPLICIT
// Releases from here on are built for CUDA 12.3 or later as NVIDIA ships them.
constexpr int kFirstConcurrent = 22800;
constexpr int kConcurrentDriver = 12030;

}  // namespace

// Read once, on the application's thread and after NCCL's own start, which may set NCCL_NET from
// nccl.conf: the environment may change later. A rank alone in this refuses the lanes.
std::vector<std::string> networks_to_use(const CommunicatorInfo& info) {
    const std::string& text = Config::process().text(Key::Lanes);
    std::vector<std::string> networks;
    std::string problem;  // text_problems() has told it
    if (shim_mode() < ShimMode::Exact || !executor::parse_networks(text, networks, problem)) {
        return {};
    }
    networks = networks_beside(std::move(networks), info.network,
                               text != kNoNetworks &&
                                   Presence::process().job_on_ib.load(std::memory_order_acquire) &&
                                   process_links().problem.empty());
    if (networks.empty()) {
        return {};
    }
    if (executor::Nccl::from(*info.table).version < kFirstNccl) {
        DEFT_WARN_ONCE(
            "DEFT_LANES has no effect: this NCCL cannot choose a communicator's network; it needs "
            "2.17");
        return {};
    }
    const char* const chosen = std::getenv("NCCL_NET");
    if (chosen != nullptr && *chosen != '\0') {
        DEFT_WARN_ONCE(
            "DEFT_LANES=%s has no effect: NCCL_NET=%s chooses one network for every communicator; "
            "unset NCCL_NET",
            text.c_str(), chosen);
        return {};
    }
    return networks;
}

// A network is no second one beside itself. Where NCCL's IB carries the job, deft's links are: they
// stand in the place of "IB", and alone where nothing is named.
std::vector<std::string> networks_beside(std::vector<std::string> networks, const char* own,
                                         bool deft) {
    if (own == nullptr) {
        return networks;
    }
    const auto is = [](const char* name) {
        return [name](const std::string& each) { return ::strcasecmp(each.c_str(), name) == 0; };
    };
    const bool named = std::erase_if(networks, is(own)) > 0 || networks.empty();
    if (deft && named && ::strcasecmp(own, kIb) == 0 &&
        std::none_of(networks.begin(), networks.end(), is(kDeft))) {
        networks.insert(networks.begin(), kDeft);
    }
    return networks;
}

Surroundings Surroundings::process(int nccl_version) {
    Surroundings around;
    around.nccl_version = nccl_version;
    around.driver_version = cuda::driver_version();
    around.order_implicit = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    around.race_fatal = std::getenv("NCCL_LAUNCH_RACE_FATAL");
    around.max_connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    around.comm_blocking = std::getenv("NCCL_COMM_BLOCKING");
    return around;
}

// A lane is warmed up in the background, so a transfer of the job is launched before that on one
// rank and behind it on another: where a kernel waits until those launched before it are done, the
// two would wait for each other.
//
// With NCCL_LAUNCH_ORDER_IMPLICIT it waits for them on the device; built for CUDA before 12.3, or
// on such a driver, until they are done. And NCCL takes the background thread for a race and fails
// the job's call, unless told not to. With a single connection all streams share one queue of the
// hardware (CUDA C++ Programming Guide, environment variables).
std::string why_no_lanes(const Surroundings& around) {
    const auto set = [](const char* value, const char* normally) {
        return std::strcmp(value != nullptr ? value : normally, "0") != 0;
    };
    if (around.max_connections != nullptr &&
        std::strtol(around.max_connections, nullptr, 10) == 1) {
        return "CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams into one queue of the device, where "
               "a lane and the job's own transfers would wait for each other; allow more, or unset "
               "it";
    }
    if (around.nccl_version >= kFirstNonblocking && around.comm_blocking != nullptr &&
        std::strcmp(around.comm_blocking, "0") == 0) {
        return "NCCL_COMM_BLOCKING=0 makes lanes nonblocking too, which no plan can use; let the "
               "job ask for what it needs (ncclConfig_t), and unset it";
    }
    if (around.nccl_version < kFirstOrdered || !set(around.order_implicit, "0")) {
        return {};
    }
    if (around.nccl_version < kFirstConcurrent || around.driver_version < kConcurrentDriver) {
        return "NCCL_LAUNCH_ORDER_IMPLICIT is set, and this NCCL or this driver (12.3 is needed) "
               "runs one communicator after the other then";
    }
    if (set(around.race_fatal, "1")) {
        return "NCCL_LAUNCH_ORDER_IMPLICIT is set without NCCL_LAUNCH_RACE_FATAL=0";
    }
    return {};
}

std::vector<planner::Link> measured_links(const std::vector<executor::LaneSpeed>& speeds,
                                          const std::vector<std::string>& others) {
    std::vector<planner::Link> links;
    for (std::size_t i = 0; i < speeds.size() && i <= others.size(); ++i) {
        planner::Link link;
        link.name = i == 0 ? "own" : others[i - 1];
        link.cost.alpha = speeds[i].start;
        link.cost.beta = speeds[i].per_byte;
        link.source = "measured";
        links.push_back(std::move(link));
    }
    // The job's own transfers go on while lanes are timed, and delay what starts on their network.
    for (const planner::Link& link : links) {
        links.front().cost.alpha = std::min(links.front().cost.alpha, link.cost.alpha);
    }
    return links;
}

double fastest_per_byte(const std::string& network, int nranks, double per_byte) {
    static auto& known = *new std::map<std::pair<std::string, int>, double>;  // never destroyed
    double& fastest = known.try_emplace({network, nranks}, per_byte).first->second;
    fastest = std::min(fastest, per_byte);
    return fastest;
}

}  // namespace deft::director
