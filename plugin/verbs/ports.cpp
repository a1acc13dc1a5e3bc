// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/ports.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "plugin/verbs/gid.h"
#include "topology/nccl_settings.h"
#include "topology/rdma.h"

namespace deft::net {
namespace {

constexpr int kSubnetBits = 64;  // of an InfiniBand GID
constexpr int kMappedBits = 96;  // in front of an IPv4 address
constexpr std::size_t kMappedBytes = 12;

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
    explicit Domains(const VerbsLibrary& library) : library_(library) {}

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
    opened->ethernet = port.ethernet();
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

VerbsPorts open_of_process() {
    const RdmaChoice& rdma = process_rdma();
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
        ports = open_verbs_ports(*library, rdma.ports, nccl_setting, list_interfaces(), problems);
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

VerbsPorts open_verbs_ports(const VerbsLibrary& library, const std::vector<RdmaPort>& ports,
                            const NcclSetting& setting, const std::vector<Interface>& links,
                            std::vector<std::string>& problems) {
    Domains domains(library);
    VerbsPorts opened;
    for (const RdmaPort& port : ports) {
        if (!port.usable()) {
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

const VerbsPorts& process_verbs_ports() {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static const VerbsPorts& ports = *new VerbsPorts(open_of_process());
    return ports;
}

}  // namespace deft::net
