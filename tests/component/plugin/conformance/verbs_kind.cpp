// SPDX-License-Identifier: Apache-2.0
// Queue pairs of the software verbs device; reception over TCP on a loopback address.
#include "plugin/mixed_path_source.h"
#include "plugin/port_pairs.h"
#include "plugin/rdma_dialer.h"
#include "tests/component/plugin/conformance/conformance.h"

namespace deft::net::testing {
namespace {

std::shared_ptr<const VerbsPort> open_port(const VerbsLibrary& library, const char* device,
                                           int host, std::string& problem) {
    char gid[40];
    std::snprintf(gid, sizeof(gid), "0000:0000:0000:0000:0000:ffff:7f00:%04x", host);
    RdmaPort port;
    port.device = device;
    port.number = 1;
    port.layer = "Ethernet";
    port.gids.push_back({3, gid, "RoCE v2", "lo", true});
    std::vector<std::string> problems;
    const VerbsPorts ports = open_verbs_ports(
        library, {port}, [](const char*) { return std::nullopt; }, {}, problems);
    problem = problems.empty() ? "" : problems.front();
    return ports.empty() ? nullptr : ports.front();
}

class VerbsScene final : public LinkScene {
public:
    static std::unique_ptr<LinkScene> make(std::string& reason) {
        const VerbsLibrary* const library = process_verbs_library(reason);
        if (library == nullptr) {
            return nullptr;
        }
        auto scene = std::make_unique<VerbsScene>();
        scene->near_ = open_port(*library, "near", 2, reason);
        scene->far_ = open_port(*library, "far", 3, reason);
        if (scene->near_ == nullptr || scene->far_ == nullptr) {
            return nullptr;
        }
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
        scene->hello_.kind = wire::Hello::kVerbs;
        scene->hello_.flags = wire::kFlagMixed;
        return scene;
    }

    std::unique_ptr<Dialer> dialer() override {
        Route route;
        route.candidates = {{device_->links[0].addresses[0], admission_->endpoints().entries[0]}};
        std::vector<std::unique_ptr<TcpDialer>> receptions;
        receptions.push_back(
            std::make_unique<TcpDialer>(device_, route, hello_, TcpDialer::Options()));
        return std::make_unique<RdmaDialer>(near_, to_wire({far_}).entries[0],
                                            std::move(receptions));
    }

    bool next(Nanos now, Admitted& admitted) override {
        Admission::Guest guest;
        if (source_ == nullptr && admission_->next(now, guest)) {
            auto reception = std::make_unique<TcpPathSource>(
                std::move(admission_), std::move(guest), 30 * kSecond,
                std::vector<std::int64_t>{far_->speed_mbps});
            source_ = std::make_unique<MixedPathSource>(std::move(reception), VerbsPorts{far_});
        }
        return source_ != nullptr && source_->next(now, Control{}, admitted);
    }

    std::shared_ptr<Domain> domain() const override { return far_->domain; }

    void stop_listening() override {
        source_.reset();
        admission_.reset();
        acceptor_.reset();
    }

private:
    std::shared_ptr<const VerbsPort> near_;
    std::shared_ptr<const VerbsPort> far_;
    std::shared_ptr<const Device> device_;
    std::shared_ptr<TcpAcceptor> acceptor_;
    std::unique_ptr<Admission> admission_;
    std::unique_ptr<MixedPathSource> source_;
    wire::Hello hello_;
};

}  // namespace

const LinkKind kVerbsKind = {"Verbs", VerbsScene::make};

}  // namespace deft::net::testing
