// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/tcp_acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "plugin/tcp/tcp_socket.h"
#include "topology/fair_room.h"

namespace deft::net {
namespace {

constexpr Nanos kHelloLimit = 5 * kSecond;  // from accept to a whole hello
constexpr Nanos kPollInterval = kMillisecond;
constexpr int kAcceptsPerPoll = 32;
constexpr Nanos kCountInterval = 50 * kMillisecond;
constexpr std::uint32_t kInsists = 60;  // attempts, one a second

Mutex process_mutex;
std::vector<std::weak_ptr<TcpAcceptor>>& process_acceptors() DEFT_REQUIRES(process_mutex) {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static auto& acceptors = *new std::vector<std::weak_ptr<TcpAcceptor>>;
    return acceptors;
}

bool somebody_knocks(const UniqueFd& listener) {
    pollfd wait{listener.get(), POLLIN, 0};
    return ::poll(&wait, 1, 0) > 0;
}

// In the version that was asked in; in ours where that one is not spoken here.
void answer(const UniqueFd& fd, const wire::Hello& hello, wire::Welcome welcome) {
    welcome.version = wire::spoken(hello.version) ? hello.version : wire::kVersion;
    std::array<std::byte, wire::kWelcomeBytes> bytes;
    wire::encode(welcome, bytes);
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Not the first of those that the sender counts on.
bool further_path(const wire::Hello& hello) {
    return hello.path != std::countr_one(hello.absent);
}

}  // namespace

std::shared_ptr<TcpAcceptor> TcpAcceptor::find(const std::shared_ptr<const Device>& device)
    DEFT_REQUIRES(process_mutex) {
    for (const std::weak_ptr<TcpAcceptor>& known : process_acceptors()) {
        std::shared_ptr<TcpAcceptor> acceptor = known.lock();
        if (acceptor != nullptr && acceptor->device_ == device &&
            acceptor->made_by_ == ::getpid()) {
            return acceptor;
        }
    }
    return nullptr;
}

std::shared_ptr<TcpAcceptor> TcpAcceptor::existing(const std::shared_ptr<const Device>& device) {
    const MutexLock lock(process_mutex);
    return find(device);
}

std::shared_ptr<TcpAcceptor> TcpAcceptor::process(const std::shared_ptr<const Device>& device,
                                                  std::string& problem) {
    const MutexLock lock(process_mutex);
    if (std::shared_ptr<TcpAcceptor> known = find(device); known != nullptr) {
        return known;
    }
    std::erase_if(process_acceptors(), [](const auto& known) { return known.expired(); });
    auto acceptor = std::make_shared<TcpAcceptor>();
    acceptor->device_ = device;
    if (!acceptor->listen_everywhere(problem)) {
        return nullptr;
    }
    process_acceptors().push_back(acceptor);
    return acceptor;
}

// Not analysed: no other thread knows of the acceptor yet.
bool TcpAcceptor::listen_everywhere(std::string& problem) DEFT_NO_THREAD_SAFETY_ANALYSIS {
    pending_.reserve(kMaxPending + 1);
    for (std::size_t link = 0; link < device_->links.size(); ++link) {
        bool have_v4 = false;
        bool have_v6 = false;
        for (const Address& address : device_->links[link].addresses) {
            bool& have = address.family == AF_INET ? have_v4 : have_v6;
            if (have || endpoints_.count == wire::kMaxEndpoints) {
                continue;  // one address of each family is enough to reach a link
            }
            wire::Endpoint endpoint{static_cast<std::uint8_t>(link), 0, address};
            std::string why;
            UniqueFd fd = listen_on(address, endpoint.port, why);
            if (!fd) {
                problem = why;
                DEFT_WARN("cannot listen on link %s: %s", device_->links[link].name.c_str(),
                          why.c_str());
                continue;
            }
            have = true;
            sockets_.push_back({std::move(fd), link});
            endpoints_.entries[endpoints_.count++] = endpoint;
        }
    }
    if (sockets_.empty() && problem.empty()) {
        problem = "no link has an address to listen on";
    }
    return !sockets_.empty();
}

std::unique_ptr<Admission> TcpAcceptor::open(const wire::PortList& ports) {
    std::uint64_t listener = 0;
    wire::Secret secret;
    if (!random_bytes(&listener, sizeof(listener)) || !random_bytes(secret.data(), secret.size())) {
        return nullptr;
    }
    auto admission =
        std::make_unique<Admission>(shared_from_this(), listener, secret, endpoints_, ports);
    const MutexLock lock(mutex_);
    admissions_.push_back(admission.get());
    return admission;
}

void TcpAcceptor::close(Admission& admission) {
    const MutexLock lock(mutex_);
    std::erase(admissions_, &admission);
}

std::size_t TcpAcceptor::pending() {
    const MutexLock lock(mutex_);
    return pending_.size();
}

void TcpAcceptor::poll(Nanos now) {
    if (!mutex_.try_lock()) {
        return;
    }
    const MutexLock lock(mutex_, std::adopt_lock);
    if (now - last_poll_ < kPollInterval && now >= last_poll_) {
        return;
    }
    last_poll_ = now;
    for (const Socket& socket : sockets_) {
        accept_from(socket, now);
    }
    for (std::size_t i = 0; i < pending_.size();) {
        if (read_hello(pending_[i], now)) {
            ++i;
        } else {
            forget(i);
        }
    }
}

void TcpAcceptor::accept_from(const Socket& socket, Nanos now) {
    for (int i = 0; i < kAcceptsPerPoll; ++i) {
        sockaddr_storage storage{};
        socklen_t length = sizeof(storage);
        auto* address = reinterpret_cast<sockaddr*>(&storage);
        UniqueFd fd(accept4(socket.fd.get(), address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!fd) {
            // Said before it is known whether anybody is there to be let in.
            if ((errno == EMFILE || errno == ENFILE) && somebody_knocks(socket.fd)) {
                if (!pending_.empty()) {
                    push_one_out();
                    continue;
                }
                DEFT_WARN_ONCE(
                    "no file descriptor left to take a peer's connection; raise the limit (ulimit "
                    "-n)");
            }
            return;
        }
        ++descriptors_.used;
        Pending pending;
        pending.fd = std::move(fd);
        pending.link = socket.link;
        pending.deadline = now + kHelloLimit;
        (void)from_sockaddr(address, pending.from, nullptr);
        // Who knows the protocol has said hello by now: he never waits among the others.
        pending_.push_back(std::move(pending));
        if (!read_hello(pending_.back(), now)) {
            forget(pending_.size() - 1);
        } else if (pending_.size() > 1) {
            const std::size_t most = room();
            while (pending_.size() > most) {
                push_one_out();
            }
        }
    }
}

// They may have a quarter of what the job has left.
std::size_t TcpAcceptor::room() {
    const Descriptors& now = descriptors();
    const std::size_t left = now.limit - std::min(now.used, now.limit) + pending_.size();
    return std::clamp<std::size_t>(left / 4, 1, kMaxPending);
}

void TcpAcceptor::push_one_out() {
    forget(who_makes_way(pending_,
                         [](const Pending& pending) -> const Address& { return pending.from; }));
    strangers_.fetch_add(1, std::memory_order_relaxed);
}

void TcpAcceptor::forget(std::size_t index) {
    // Who was let in has taken his descriptor with him.
    descriptors_.used -= pending_[index].fd && descriptors_.used > 0 ? 1 : 0;
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
}

// False when this one is dealt with, one way or another.
bool TcpAcceptor::read_hello(Pending& pending, Nanos now) {
    const ssize_t got = recv(pending.fd.get(), pending.hello.data() + pending.got,
                             pending.hello.size() - pending.got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (now < pending.deadline) {
            return true;
        }
        strangers_.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    if (got <= 0) {
        strangers_.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    pending.got += static_cast<std::size_t>(got);
    wire::Hello hello;
    if (pending.got < pending.hello.size()) {
        return true;
    }
    switch (wire::decode(pending.hello, hello)) {
        case wire::Decoded::Ok:
            admit(pending, hello);
            return false;
        case wire::Decoded::WrongVersion: {
            DEFT_WARN_ONCE(
                "a peer's deft speaks protocol version %u, this one %u to %u: install the same "
                "release on all hosts",
                hello.version, wire::kOldestVersion, wire::kVersion);
            wire::Welcome welcome;
            welcome.answer = wire::Answer::WrongVersion;
            answer(pending.fd, hello, welcome);
            return false;
        }
        case wire::Decoded::NotDeft:
        case wire::Decoded::Malformed:
        case wire::Decoded::Damaged:
            break;
    }
    strangers_.fetch_add(1, std::memory_order_relaxed);
    DEFT_DEBUG("dropped a connection that does not speak deft");
    return false;
}

// Counted now and then, as counting takes a call for each.
const Descriptors& TcpAcceptor::descriptors() {
    if (counted_ == 0 || last_poll_ - counted_ > kCountInterval) {
        descriptors_ = Descriptors::now();
        counted_ = last_poll_;
    }
    return descriptors_;
}

void TcpAcceptor::answer_whether_alive(Pending& pending, const wire::Hello& hello) {
    const bool lives = std::any_of(homes_.begin(), homes_.end(), [&](const TcpHome* home) {
        return home->connection_ == hello.connection &&
               wire::equal_secrets(home->secret_, hello.secret);
    });
    wire::Welcome welcome;
    welcome.answer = lives ? wire::Answer::Accepted : wire::Answer::Closed;
    answer(pending.fd, hello, welcome);
}

void TcpAcceptor::admit(Pending& pending, const wire::Hello& hello) {
    if ((hello.flags & wire::kFlagAlive) != 0) {
        answer_whether_alive(pending, hello);
        return;
    }
    bool known = false;
    for (Admission* admission : admissions_) {
        if (admission->listener_ != hello.listener) {
            continue;
        }
        known = true;
        // Every admission in the list is this acceptor's own.
        admission->acceptor_->mutex_.assert_held();
        if (!wire::equal_secrets(admission->secret_, hello.secret)) {
            break;
        }
        if ((hello.flags & wire::kFlagAsk) != 0) {
            wire::Welcome welcome;
            welcome.endpoints = admission->endpoints_;
            welcome.ports = admission->ports_;
            answer(pending.fd, hello, welcome);
            return;
        }
        if (hello.connection == 0) {
            break;
        }
        if (!admission->offers(hello)) {
            wire::Welcome welcome;
            welcome.answer = wire::Answer::Refused;
            answer(pending.fd, hello, welcome);
            return;
        }
        // The sender tries again later. Its first path comes in, and one that it cannot do without.
        if (further_path(hello) && descriptors().scarce(hello.incarnation > kInsists)) {
            DEFT_WARN_ONCE(
                "file descriptors are short: peers' connections get fewer paths than they ask for; "
                "raise the limit (ulimit -n)");
            return;
        }
        if (admission->connection_ == 0) {
            admission->connection_ = hello.connection;
        }
        if (admission->connection_ != hello.connection) {
            wire::Welcome welcome;
            welcome.answer = wire::Answer::Refused;
            answer(pending.fd, hello, welcome);
            return;
        }
        // Attempts that were given up by the sender are worth nothing: the newest counts.
        std::erase_if(admission->guests_, [&](const Admission::Guest& other) {
            return other.hello.path == hello.path && other.hello.incarnation < hello.incarnation;
        });
        if (admission->guests_.size() < kMaxGuests) {
            admission->guests_.push_back(
                {std::move(pending.fd), hello, pending.link, pending.from});
            admission->waiting_.store(true, std::memory_order_release);
        }
        return;
    }
    strangers_.fetch_add(1, std::memory_order_relaxed);
    if (known) {
        DEFT_DEBUG("dropped a connection that did not prove a secret");
        return;
    }
    // A connection that this process has closed, which the peer may not have heard of.
    wire::Welcome welcome;
    welcome.answer = wire::Answer::Closed;
    answer(pending.fd, hello, welcome);
}

Admission::Admission(std::shared_ptr<TcpAcceptor> acceptor, std::uint64_t listener,
                     const wire::Secret& secret, const wire::EndpointList& endpoints,
                     const wire::PortList& ports)
    : acceptor_(std::move(acceptor)),
      listener_(listener),
      secret_(secret),
      endpoints_(endpoints),
      ports_(ports) {}

bool Admission::offers(const wire::Hello& hello) const {
    return hello.kind == wire::Hello::kTcp ||
           (hello.kind == wire::Hello::kPort && hello.remote_port < ports_.count);
}

Admission::~Admission() {
    if (acceptor_->made_by_ == ::getpid()) {  // in a forked child the mutex may be locked for ever
        acceptor_->close(*this);
    }
}

bool Admission::next(Nanos now, Guest& guest) {
    acceptor_->poll(now);
    if (!waiting_.load(std::memory_order_acquire)) {
        return false;
    }
    const MutexLock lock(acceptor_->mutex_);
    if (guests_.empty()) {
        waiting_.store(false, std::memory_order_relaxed);
        return false;
    }
    guest = std::move(guests_.front());
    guests_.erase(guests_.begin());
    return true;
}

TcpHome::TcpHome(std::shared_ptr<TcpAcceptor> acceptor, std::uint64_t connection,
                 const wire::Secret& secret)
    : acceptor_(std::move(acceptor)), connection_(connection), secret_(secret) {
    const MutexLock lock(acceptor_->mutex_);
    acceptor_->homes_.push_back(this);
}

TcpHome::~TcpHome() {
    TcpHome::leave();
}

void TcpHome::leave() {
    if (acceptor_ == nullptr || acceptor_->made_by_ != ::getpid()) {
        return;  // in a forked child the mutex may be locked for ever
    }
    {
        const MutexLock lock(acceptor_->mutex_);
        std::erase(acceptor_->homes_, this);
    }
    acceptor_.reset();  // with the last of them nobody listens any more
}

wire::Endpoint TcpHome::place(std::size_t link, const Address& own) const {
    if (acceptor_ == nullptr) {
        return {};
    }
    const wire::EndpointList& all = acceptor_->endpoints_;
    const auto* const end = all.entries.data() + all.count;
    const auto* const found =
        std::find_if(all.entries.data(), end, [&](const wire::Endpoint& endpoint) {
            return endpoint.link == link && endpoint.address == own;
        });
    return found == end ? wire::Endpoint{} : *found;
}

void TcpHome::poll(Nanos now) {
    if (acceptor_ != nullptr) {
        acceptor_->poll(now);
    }
}

}  // namespace deft::net
