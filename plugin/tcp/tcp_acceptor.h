// SPDX-License-Identifier: Apache-2.0
// A device's listening sockets, shared by all its connections, and what comes in through them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "plugin/core/receiver.h"
#include "plugin/tcp/descriptors.h"
#include "plugin/tcp/device.h"
#include "plugin/tcp/wire.h"

namespace deft::net {

class Admission;
class TcpHome;

// All methods from any thread.
class TcpAcceptor : public std::enable_shared_from_this<TcpAcceptor> {
public:
    // The one of this process and device, made when first needed and gone with the last Admission.
    // NULL and the cause if nothing can be listened on.
    static std::shared_ptr<TcpAcceptor> process(const std::shared_ptr<const Device>& device,
                                                std::string& problem);

    // The same, but only if there is one.
    static std::shared_ptr<TcpAcceptor> existing(const std::shared_ptr<const Device>& device);

    // `ports`: the RDMA ports at which the peer may ask for paths.
    std::unique_ptr<Admission> open(const wire::PortList& ports = {});
    const Device& device() const { return *device_; }
    std::shared_ptr<const Device> shared_device() const { return device_; }
    // Accepts and reads hellos; returns at once if another thread is at it.
    void poll(Nanos now);
    std::size_t strangers() const { return strangers_.load(std::memory_order_relaxed); }
    std::size_t pending();

private:
    friend class Admission;
    friend class TcpHome;
    struct Socket {
        UniqueFd fd;
        std::size_t link;
    };
    struct Pending {
        UniqueFd fd;
        std::size_t link = 0;
        Address from;
        std::size_t got = 0;
        Nanos deadline = 0;
        std::array<std::byte, wire::kHelloBytes> hello;
    };
    // Connections that have not said who they are, to this device; fewer where descriptors are
    // short. When there are more, one goes of the address that has most of them: who floods us
    // pushes out himself.
    static constexpr std::size_t kMaxPending = 64;
    static constexpr std::size_t kMaxGuests = 2 * wire::kMaxPaths;

    static std::shared_ptr<TcpAcceptor> find(const std::shared_ptr<const Device>& device);
    bool listen_everywhere(std::string& problem);
    void accept_from(const Socket& socket, Nanos now) DEFT_REQUIRES(mutex_);
    bool read_hello(Pending& pending, Nanos now) DEFT_REQUIRES(mutex_);
    void admit(Pending& pending, const wire::Hello& hello) DEFT_REQUIRES(mutex_);
    void answer_whether_alive(Pending& pending, const wire::Hello& hello) DEFT_REQUIRES(mutex_);
    std::size_t room() DEFT_REQUIRES(mutex_);
    void push_one_out() DEFT_REQUIRES(mutex_);
    void forget(std::size_t index) DEFT_REQUIRES(mutex_);
    const Descriptors& descriptors() DEFT_REQUIRES(mutex_);
    void close(Admission& admission);

    const pid_t made_by_ = ::getpid();  // a forked child must not share the sockets
    std::shared_ptr<const Device> device_;
    wire::EndpointList endpoints_;
    std::vector<Socket> sockets_;
    Mutex mutex_;
    std::vector<Pending> pending_ DEFT_GUARDED_BY(mutex_);
    std::vector<Admission*> admissions_ DEFT_GUARDED_BY(mutex_);
    std::vector<const TcpHome*> homes_ DEFT_GUARDED_BY(mutex_);
    Nanos last_poll_ DEFT_GUARDED_BY(mutex_) = 0;
    Nanos counted_ DEFT_GUARDED_BY(mutex_) = 0;
    Descriptors descriptors_ DEFT_GUARDED_BY(mutex_);
    std::atomic<std::size_t> strangers_{0};
};

// One listening object (later one receiving connection): proves who may come in, and keeps those
// who have come until they are fetched.
class Admission {
public:
    Admission(std::shared_ptr<TcpAcceptor> acceptor, std::uint64_t listener,
              const wire::Secret& secret, const wire::EndpointList& endpoints,
              const wire::PortList& ports);
    ~Admission();

    struct Guest {
        UniqueFd fd;
        wire::Hello hello;
        std::size_t link = 0;  // ours, through which it came
        Address from;
    };
    // The next who has proved the secret. Reads the process's listening sockets if need be.
    bool next(Nanos now, Guest& guest);
    std::uint64_t listener() const { return listener_; }
    const wire::Secret& secret() const { return secret_; }
    // The device's sockets, at which this listener's peer is let in.
    const wire::EndpointList& endpoints() const { return endpoints_; }
    TcpAcceptor& acceptor() { return *acceptor_; }

private:
    friend class TcpAcceptor;
    bool offers(const wire::Hello& hello) const;

    std::shared_ptr<TcpAcceptor> acceptor_;
    std::uint64_t listener_;
    wire::Secret secret_;
    wire::EndpointList endpoints_;
    wire::PortList ports_;
    // 0: not yet bound to one.
    std::uint64_t connection_ DEFT_GUARDED_BY(acceptor_->mutex_) = 0;
    std::vector<Guest> guests_ DEFT_GUARDED_BY(acceptor_->mutex_);
    std::atomic<bool> waiting_{false};
};

// One sending connection of this process, which its peer may ask for.
class TcpHome final : public Home {
public:
    TcpHome(std::shared_ptr<TcpAcceptor> acceptor, std::uint64_t connection,
            const wire::Secret& secret);
    ~TcpHome() override;
    TcpHome(const TcpHome&) = delete;
    TcpHome& operator=(const TcpHome&) = delete;

    void poll(Nanos now) override;
    void leave() override;
    // Where it is asked for by who is called from `own` (on `link`); no family: nowhere.
    wire::Endpoint place(std::size_t link, const Address& own) const;

private:
    friend class TcpAcceptor;
    std::shared_ptr<TcpAcceptor> acceptor_;
    std::uint64_t connection_;
    wire::Secret secret_;
};

}  // namespace deft::net
