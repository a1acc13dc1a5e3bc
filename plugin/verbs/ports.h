// SPDX-License-Identifier: Apache-2.0
// The RDMA ports that connections of this process drive.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "plugin/core/port.h"
#include "plugin/verbs/domain.h"
#include "plugin/verbs/port_options.h"
#include "plugin/verbs/verbs_path.h"
#include "topology/interfaces.h"
#include "topology/rdma.h"
#include "topology/rdma_ports.h"

namespace deft::net {

struct VerbsPort final : Port {
    VerbsQueuePair::Options options;
    std::shared_ptr<VerbsDomain> domain;  // of its device, shared by the device's ports

    Capabilities capabilities() const override { return VerbsPath::kCapabilities; }
    std::shared_ptr<Domain> registers_in() const override { return domain; }
    Carrier carrier() const override { return domain->context().carrier(options.port); }
    std::unique_ptr<Handshake> begin(PathRole role, UniqueFd socket, bool flushes) const override;
};
using VerbsPorts = std::vector<std::shared_ptr<const VerbsPort>>;

// Opens those of `ports` that are usable. `links`: of this host, whose networks the GIDs belong to.
// Those in `open` are there already. What cannot be opened is left out, and its cause added to
// `problems`. Some milliseconds each.
VerbsPorts open_verbs_ports(const VerbsLibrary& library, const std::vector<RdmaPort>& ports,
                            const NcclSetting& setting, const std::vector<Interface>& links,
                            std::vector<std::string>& problems, const VerbsPorts& open = {});

// The ports that connections drive: those that are usable from the beginning, and such whose link
// comes up later. Any thread.
class DrivenPorts {
public:
    // `first`: what choose_rdma(sysfs, true) has said. Opens its ports: some milliseconds each.
    DrivenPorts(const RdmaChoice& first, const std::string& sysfs);

    // Constant.
    const VerbsPorts& first() const { return first_; }
    // With those that have come up since and are open. While there may be more, a thread looks for
    // them once a second: opening one takes milliseconds, which NCCL's thread has not.
    VerbsPorts now();

private:
    struct Waiting {  // its link is down
        std::string device;
        int number = 0;
    };
    // Also that thread's, which ends soon after these ports do.
    struct Shared {
        std::string sysfs;             // constant
        std::vector<Waiting> waiting;  // of the thread alone, once it is started
        Mutex mutex;
        VerbsPorts ports DEFT_GUARDED_BY(mutex);
    };
    static std::vector<Waiting> waiting(const RdmaChoice& rdma);
    static void* watch(void* shared);
    static void look(Shared& shared);

    const VerbsPorts first_;
    const std::shared_ptr<Shared> shared_;
};

// Those of this process: with DEFT_RDMA=replace, where NCCL's IB could carry the job; else none.
// `first`: those that it has had from the beginning, which NCCL is told of; opened at the first
// call, then constant. Any thread.
const VerbsPorts& first_verbs_ports();
// Those for a connection that is made now.
VerbsPorts verbs_ports_now();

}  // namespace deft::net
