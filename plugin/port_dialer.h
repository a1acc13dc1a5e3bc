// SPDX-License-Identifier: Apache-2.0
// Makes one path over a pair of ports: reception over TCP, then what goes over the ports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugin/core/port.h"
#include "plugin/tcp/tcp_dialer.h"

namespace deft::net {

// One thread at a time; nothing blocks, as what may runs on threads of its own (blocking_calls.h).
class PortDialer final : public Dialer {
public:
    // `peer`: the port that the receptions' hellos name. `receptions`: ways over TCP to the peer's
    // listener, best first; each attempt takes one, the last that worked before others.
    PortDialer(std::shared_ptr<const Port> port, const wire::Port& peer,
               std::vector<std::unique_ptr<TcpDialer>> receptions);

    // Known not to work: its port has no carrier, or this process has tried the pair in vain.
    static bool known_dead(const Port& port, const wire::Port& peer);

    Capabilities capabilities() const override { return port_->capabilities(); }
    std::shared_ptr<Domain> domain() const override { return port_->registers_in(); }
    void start(std::uint32_t incarnation, Nanos now) override;
    Result poll(Nanos now, Connected& connected) override;
    void cancel() override;
    bool reached(Nanos now) const override;
    Carrier carrier() const override { return port_->carrier(); }
    const char* failure() const override { return failure_.c_str(); }
    const char* describe() const override { return description_.c_str(); }
    LinkCounters& counters() override { return counters_; }

private:
    enum class Stage { Idle, Refused, Reception, Handshake };
    void begin_handshake(Nanos now);
    Result poll_reception(Nanos now);
    Result poll_handshake(Connected& connected);
    Result fail(Result result, const std::string& why);

    const std::shared_ptr<const Port> port_;
    const wire::Port peer_;
    std::vector<std::unique_ptr<TcpDialer>> receptions_;
    LinkCounters& counters_;
    std::size_t reception_ = 0;  // of this attempt
    std::size_t preferred_ = 0;
    std::size_t attempts_ = 0;  // since the last success
    Stage stage_ = Stage::Idle;
    Nanos began_ = 0;    // the handshake
    Connected welcome_;  // without a path
    std::unique_ptr<Handshake> handshake_;
    std::string failure_ = "not tried yet";
    std::string description_;
};

}  // namespace deft::net
