// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include "plugin/tcp/tcp_acceptor.h"
#include "plugin/tcp/tcp_dialer.h"
#include "plugin/tcp/tcp_path.h"
#include "tests/component/plugin/conformance/conformance.h"

namespace deft::net::testing {
namespace {

class TcpScene final : public LinkScene {
public:
    static std::unique_ptr<LinkScene> make(const char* address, std::string& reason,
                                           bool look_first = false) {
        auto scene = std::make_unique<TcpScene>();
        scene->options_.look_first = look_first;
        Interface link;
        link.name = std::string("loopback ") + address;
        link.loopback = link.up = true;
        link.addresses.resize(1);
        if (!parse_address(address, link.addresses[0])) {
            reason = "not an address";
            return nullptr;
        }
        scene->device_ = std::make_shared<const Device>(make_device({link}));
        scene->acceptor_ = TcpAcceptor::process(scene->device_, reason);
        if (scene->acceptor_ == nullptr) {
            return nullptr;
        }
        scene->admission_ = scene->acceptor_->open();
        return scene;
    }

    std::unique_ptr<Dialer> dialer() override {
        Route route;
        route.candidates = {{device_->links[0].addresses[0], admission_->endpoints().entries[0]}};
        wire::Hello hello;
        hello.listener = admission_->listener();
        hello.secret = admission_->secret();
        hello.connection = 77;
        hello.paths = 1;
        return std::make_unique<TcpDialer>(device_, route, hello, TcpDialer::Options());
    }

    bool next(Nanos now, Admitted& admitted) override {
        Admission::Guest guest;
        if (!admission_->next(now, guest)) {
            return false;
        }
        wire::Welcome welcome;
        welcome.endpoints = admission_->endpoints();
        std::array<std::byte, wire::kWelcomeBytes> bytes;
        wire::encode(welcome, bytes);
        if (send(guest.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(bytes.size())) {
            return false;
        }
        admitted.index = guest.hello.path;
        admitted.incarnation = guest.hello.incarnation;
        admitted.counters = &LinkStats::process().link("conformance", "tcp");
        admitted.path = std::make_unique<TcpPath>(std::move(guest.fd), TcpPath::Role::Receiver,
                                                  "accepted", options_);
        return true;
    }

    void stop_listening() override {
        admission_.reset();
        acceptor_.reset();
    }

private:
    TcpPath::Options options_;
    std::shared_ptr<const Device> device_;
    std::shared_ptr<TcpAcceptor> acceptor_;
    std::unique_ptr<Admission> admission_;
};

}  // namespace

const LinkKind kTcpKind = {"Tcp",
                           [](std::string& reason) { return TcpScene::make("127.0.0.2", reason); }};
const LinkKind kTcpLookKind = {
    "TcpLook", [](std::string& reason) { return TcpScene::make("127.0.0.3", reason, true); }};
const LinkKind kTcp6Kind = {"Tcp6",
                            [](std::string& reason) { return TcpScene::make("::1", reason); }};

}  // namespace deft::net::testing
