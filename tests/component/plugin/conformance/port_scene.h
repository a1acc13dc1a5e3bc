// SPDX-License-Identifier: Apache-2.0
// Paths between two ports of this process; reception over TCP on a loopback address.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/mixed_path_source.h"
#include "plugin/port_dialer.h"
#include "plugin/port_pairs.h"
#include "tests/component/plugin/conformance/conformance.h"

namespace deft::net::testing {

class PortScene final : public LinkScene {
public:
    static std::unique_ptr<LinkScene> make(std::shared_ptr<const Port> near,
                                           std::shared_ptr<const Port> far, std::string& reason) {
        auto scene = std::make_unique<PortScene>();
        scene->near_ = std::move(near);
        scene->far_ = std::move(far);
        Interface link;
        link.name = "loopback 127.0.0.9";
        link.loopback = link.up = true;
        link.addresses.resize(1);
        (void)parse_address("127.0.0.9", link.addresses[0]);
        scene->device_ = std::make_shared<const Device>(make_device({link}));
        scene->acceptor_ = TcpAcceptor::process(scene->device_, reason);
        if (scene->acceptor_ == nullptr) {
            return nullptr;
        }
        scene->admission_ = scene->acceptor_->open(to_wire({scene->far_}));
        scene->hello_.listener = scene->admission_->listener();
        scene->hello_.secret = scene->admission_->secret();
        scene->hello_.connection = 78;
        scene->hello_.paths = 1;
        scene->hello_.kind = wire::Hello::kPort;
        scene->hello_.flags = wire::kFlagMixed;
        return scene;
    }

    std::unique_ptr<Dialer> dialer() override {
        Route route;
        route.candidates = {{device_->links[0].addresses[0], admission_->endpoints().entries[0]}};
        std::vector<std::unique_ptr<TcpDialer>> receptions;
        receptions.push_back(
            std::make_unique<TcpDialer>(device_, route, hello_, TcpDialer::Options()));
        return std::make_unique<PortDialer>(near_, to_wire({far_}).entries[0],
                                            std::move(receptions));
    }

    bool next(Nanos now, Admitted& admitted) override {
        Admission::Guest guest;
        if (source_ == nullptr && admission_->next(now, guest)) {
            auto reception = std::make_unique<TcpPathSource>(
                std::move(admission_), std::move(guest), 30 * kSecond,
                std::vector<std::int64_t>{far_->speed_mbps});
            source_ = std::make_unique<MixedPathSource>(std::move(reception), Ports{far_});
        }
        return source_ != nullptr && source_->next(now, Control{}, admitted);
    }

    std::shared_ptr<Domain> domain() const override { return far_->registers_in(); }

    void stop_listening() override {
        source_.reset();
        admission_.reset();
        acceptor_.reset();
    }

private:
    std::shared_ptr<const Port> near_;
    std::shared_ptr<const Port> far_;
    std::shared_ptr<const Device> device_;
    std::shared_ptr<TcpAcceptor> acceptor_;
    std::unique_ptr<Admission> admission_;
    std::unique_ptr<MixedPathSource> source_;
    wire::Hello hello_;
};

}  // namespace deft::net::testing
