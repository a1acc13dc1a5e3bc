// SPDX-License-Identifier: Apache-2.0
// The paths of one receiver of which some go over ports: all of them come in over TCP.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/core/port.h"
#include "plugin/core/receiver.h"
#include "plugin/tcp/tcp_path_source.h"

namespace deft::net {

class MixedPathSource final : public PathSource {
public:
    // `ports`: those that the admission offers, in their order. `flushes`: Port::begin's.
    MixedPathSource(std::unique_ptr<TcpPathSource> reception, Ports ports, bool flushes = false);

    bool next(Nanos now, const Control& state, Admitted& admitted) override;
    bool expecting() const override { return !handshakes_.empty(); }
    Carrier carrier(std::size_t path) const override;
    std::vector<std::shared_ptr<Domain>> domains() const override;
    Word ask(std::size_t path, Nanos now) override { return reception_->ask(path, now); }

private:
    struct Coming {
        std::unique_ptr<Handshake> handshake;
        std::shared_ptr<const Port> port;
        std::uint16_t path = 0;
        std::uint32_t incarnation = 0;
        std::uint64_t told_posted = 0;
        Nanos began = 0;
    };
    void begin(TcpPathSource::Beginning& beginning, Nanos now);
    static void admit(Coming& coming, std::unique_ptr<Path> path, Admitted& admitted);

    const std::unique_ptr<TcpPathSource> reception_;
    const Ports ports_;
    const bool flushes_;
    std::vector<Coming> handshakes_;
    std::array<std::shared_ptr<const Port>, wire::kMaxPaths> port_of_;  // of each path
};

}  // namespace deft::net
