// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/ports.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "base/config.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/thread.h"
#include "plugin/verbs/gid.h"
#include "plugin/verbs/handshake.h"
#include "topology/nccl_settings.h"

namespace deft::net {
namespace {

constexpr int kSubnetBits = 64;  // of an InfiniBand GID
constexpr int kMappedBits = 96;  // in front of an IPv4 address
constexpr std::size_t kMappedBytes = 12;
constexpr auto kLook = std::chrono::seconds(1);  // between looks for ports that have come up

// Of the network that an Ethernet port's GID, which is one of the interface's addresses, is in.
int prefix_of(const deft_verbs_gid_t& gid, const std::string& interface,
              const std::vector<Interface>& links) {
    for (const Interface& link : links) {
        for (const Address& address : link.addresses) {
            const bool four = address.family == AF_INET;
            const std::uint8_t* const raw = gid.raw + (four ? kMappedBytes : 0);
            if (link.name == interface &&
                std::equal(raw, raw + address.size(), address.bytes.begin())) {
                return address.prefix + (four ? kMappedBits : 0);
            }
        }
    }
    return 0;
}

// Devices by their names; each has one domain.
class Domains {
public:
    // `open`: ports whose domains there are already.
    Domains(const VerbsLibrary& library, const VerbsPorts& open) : library_(library) {
        for (const auto& port : open) {
            domains_[port->domain->context().device()] = port->domain;
        }
    }

    std::shared_ptr<VerbsDomain> of(const std::string& device, std::string& problem) {
        std::shared_ptr<VerbsDomain>& domain = domains_[device];
        if (domain == nullptr) {
            auto context = VerbsContext::open(library_, device, problem);
            domain = context == nullptr ? nullptr : VerbsDomain::make(std::move(context), problem);
        }
        return domain;
    }

private:
    const VerbsLibrary& library_;
    std::map<std::string, std::shared_ptr<VerbsDomain>> domains_;
};

std::shared_ptr<const VerbsPort> open_port(Domains& domains, const RdmaPort& port,
                                           const NcclSetting& setting,
                                           const std::vector<Interface>& links,
                                           std::string& problem) {
    const std::optional<VerbsQueuePair::Options> options = options_of(port, setting, problem);
    if (!options) {
        return nullptr;
    }
    auto opened = std::make_shared<VerbsPort>();
    opened->name = port.name();
    opened->kind = port.kind();
    opened->speed_mbps = port.speed_mbps;
    opened->layer = port.ethernet() ? Port::Layer::Ethernet : Port::Layer::InfiniBand;
    opened->interfaces = port.interfaces;
    opened->options = *options;
    for (const RdmaGid& entry : port.gids) {
        if (entry.index == options->gid_index) {
            opened->gid = parse_gid(entry.gid).value_or(deft_verbs_gid_t{});
            opened->prefix =
                port.ethernet() ? prefix_of(opened->gid, entry.interface, links) : kSubnetBits;
        }
    }
    opened->domain = domains.of(port.device, problem);
    if (opened->domain == nullptr) {
        return nullptr;
    }
    (void)opened->carrier();  // asks the driver the first time, which no connection has time for
    return opened;
}

// What is chosen of the host's ports, but for those that are open.
VerbsPorts open_chosen(const RdmaChoice& rdma, const VerbsPorts& open) {
    if (!rdma.drives_ports) {
        return {};
    }
    std::string problem;
    const VerbsLibrary* const library = process_verbs_library(problem);
    std::vector<std::string> problems;
    VerbsPorts ports;
    if (library == nullptr) {
        problems.push_back(problem);
    } else {
        ports =
            open_verbs_ports(*library, rdma.ports, nccl_setting, list_interfaces(), problems, open);
    }
    for (const std::string& each : problems) {
        DEFT_WARN("DEFT_RDMA=replace: an RDMA port is not driven: %s", each.c_str());
    }
    for (const auto& port : ports) {
        DEFT_INFO("RDMA port %s (%s), %lld Mbit/s", port->name.c_str(), port->kind,
                  static_cast<long long>(port->speed_mbps));
    }
    return ports;
}

}  // namespace

std::unique_ptr<Handshake> VerbsPort::begin(PathRole role, UniqueFd socket, bool flushes) const {
    return std::make_unique<VerbsHandshake>(domain, options, role, std::move(socket), flushes);
}

VerbsPorts open_verbs_ports(const VerbsLibrary& library, const std::vector<RdmaPort>& ports,
                            const NcclSetting& setting, const std::vector<Interface>& links,
                            std::vector<std::string>& problems, const VerbsPorts& open) {
    Domains domains(library, open);
    VerbsPorts opened;
    for (const RdmaPort& port : ports) {
        const bool is_open = std::any_of(
            open.begin(), open.end(), [&](const auto& each) { return each->name == port.name(); });
        if (!port.usable() || is_open) {
            continue;
        }
        std::string problem;
        if (auto made = open_port(domains, port, setting, links, problem); made != nullptr) {
            opened.push_back(std::move(made));
        } else {
            problems.push_back(problem);
        }
    }
    return opened;
}

DrivenPorts::DrivenPorts(const RdmaChoice& first, const std::string& sysfs)
    : first_(open_chosen(first, {})), shared_(std::make_shared<Shared>()) {
    shared_->sysfs = sysfs;
    shared_->waiting = waiting(first);
    {
        const MutexLock lock(shared_->mutex);
        shared_->ports = first_;
    }
    ForkGuard::process().arm();
    if (shared_->waiting.empty() || ForkGuard::process().in_child()) {
        return;
    }
    // The system's stack: what runs there is the vendor's.
    auto argument = std::make_unique<std::weak_ptr<Shared>>(shared_);
    if (start_thread("deft-rdma-look", 0, watch, argument.get()) == 0) {
        (void)argument.release();
    }
}

std::vector<DrivenPorts::Waiting> DrivenPorts::waiting(const RdmaChoice& rdma) {
    std::vector<Waiting> down;
    for (const RdmaPort& port : rdma.ports) {
        if (port.obstacle == kNotActive) {
            down.push_back({port.device, port.number});
        }
    }
    return down;
}

VerbsPorts DrivenPorts::now() {
    const MutexLock lock(shared_->mutex);
    return shared_->ports;
}

void* DrivenPorts::watch(void* argument) {
    const std::unique_ptr<std::weak_ptr<Shared>> of(static_cast<std::weak_ptr<Shared>*>(argument));
    for (;;) {
        std::this_thread::sleep_for(kLook);
        const std::shared_ptr<Shared> shared = of->lock();
        if (shared == nullptr || shared->waiting.empty()) {
            return nullptr;
        }
        try {
            look(*shared);
        } catch (...) {  // memory: the next look may have it
        }
    }
}

// Nobody else changes the ports.
void DrivenPorts::look(Shared& shared) {
    const std::string root = sysfs_root(shared.sysfs);
    const auto up = [&](const Waiting& each) {
        return rdma_port_active(root, each.device, each.number);
    };
    if (std::none_of(shared.waiting.begin(), shared.waiting.end(), up)) {
        return;
    }
    VerbsPorts open;
    {
        const MutexLock lock(shared.mutex);
        open = shared.ports;
    }
    const RdmaChoice rdma = choose_rdma(shared.sysfs, true);
    shared.waiting = waiting(rdma);
    VerbsPorts came = open_chosen(rdma, open);
    const MutexLock lock(shared.mutex);
    for (auto& port : came) {
        shared.ports.push_back(std::move(port));
    }
}

namespace {

// NULL: this process drives none.
DrivenPorts* driven_ports() {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static DrivenPorts* const ports =
        Config::process().is(Key::Rdma, "replace")
            ? new DrivenPorts(process_rdma(), Config::process().text(Key::Sysfs))
            : nullptr;
    return ports;
}

}  // namespace

const VerbsPorts& first_verbs_ports() {
    static const VerbsPorts& none = *new VerbsPorts;
    const DrivenPorts* const ports = driven_ports();
    return ports == nullptr ? none : ports->first();
}

VerbsPorts verbs_ports_now() {
    DrivenPorts* const ports = driven_ports();
    return ports == nullptr ? VerbsPorts() : ports->now();
}

}  // namespace deft::net
