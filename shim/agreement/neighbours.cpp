// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/neighbours.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "shim/agreement/descriptors.h"
#include "shim/agreement/surroundings.h"
#include "topology/fair_room.h"

namespace deft::agreement {
namespace {

constexpr int kBacklog = 256;
constexpr std::size_t kMaxNeighbours = 1024;
// Of other hosts, that have yet to say the secret.
constexpr std::size_t kMaxStrangers = 64;
constexpr int kAcceptsPerTurn = 64;
constexpr auto kPause = std::chrono::milliseconds(100);
// So much may wait for the leader before the neighbours have to.
constexpr std::size_t kMaxOnTheWay = std::size_t{4} << 20;

socklen_t address_of(const std::string& name, sockaddr_un& address) {
    address = {};
    address.sun_family = AF_UNIX;
    // The first byte stays zero: the name is in no file system.
    const std::size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), size);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

bool same_user(int fd) {
    ucred peer{};
    socklen_t length = sizeof(peer);
    return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
           peer.uid == ::geteuid();
}

}  // namespace

std::string relay_name(std::uint64_t leader_process) {
    std::array<char, 96> name{};
    (void)std::snprintf(name.data(), name.size(), "deft-agree-%d-%u-%016llx-%016llx",
                        int{wire::kVersion}, static_cast<unsigned>(::geteuid()),
                        static_cast<unsigned long long>(leader_process),
                        static_cast<unsigned long long>(Surroundings::process().host));
    return name.data();
}

UniqueFd call_relay(const std::string& name) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un address;
    const socklen_t length = address_of(name, address);
    if (fd && (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
               !same_user(fd.get()))) {
        const int error = errno;
        fd.reset();
        errno = error;
    }
    return fd;
}

Neighbours::~Neighbours() {
    stop();
}

bool Neighbours::serve(const std::string& name) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un address;
    const socklen_t length = address_of(name, address);
    if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(fd.get(), kBacklog) != 0 || !links_.poller.add(fd.get(), EPOLLIN, &door_)) {
        return false;
    }
    door_.fd = std::move(fd);
    return true;
}

void Neighbours::close_doors() {
    for (Door& door : host_doors_) {
        links_.poller.forget(door.listening, &door);
    }
    host_doors_.clear();
    hosts_.reset();
    if (door_.fd) {
        links_.poller.forget(door_.fd.get(), &door_);
        door_.fd.reset();
    }
}

void Neighbours::stop() {
    close_doors();
    way_lost();
    strangers_.clear();
    downs_.clear();
    routes_.clear();
}

bool Neighbours::serve_hosts(wire::Trailer& offer) {
    std::string why;
    if (hosts_ == nullptr) {
        hosts_ = Listener::open(Surroundings::process().interfaces, why);
        if (hosts_ == nullptr || !random_bytes(secret_.data(), secret_.size())) {
            hosts_.reset();
            return false;
        }
        for (std::size_t i = 0; i < hosts_->size(); ++i) {
            host_doors_.emplace_back(*this, hosts_->fd(i));
            (void)links_.poller.add(hosts_->fd(i), EPOLLIN, &host_doors_.back());
        }
    }
    offer.nonce = secret_;
    hosts_->fill(offer);
    return true;
}

void Neighbours::Door::ready(std::uint32_t /*events*/, Clock::time_point /*now*/) {
    owner.let_in(fd ? fd.get() : listening, static_cast<bool>(fd));
}

// None: nobody waits, or nobody may come in for now.
UniqueFd Neighbours::accept_one(int door, Address& from) {
    if (!room_for_one_more(door)) {
        close_doors();  // the job needs them more: the others connect for themselves
        return UniqueFd();
    }
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    auto* const address = reinterpret_cast<sockaddr*>(&storage);
    UniqueFd fd(::accept4(door, address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
        (void)from_sockaddr(address, from, nullptr);
    } else if (errno == EMFILE || errno == ENFILE) {
        close_doors();
    } else if (errno == ENOMEM || errno == ENOBUFS) {
        let_in_again_ = Clock::now() + kPause;
        open_doors(false);
    }
    return fd;
}

void Neighbours::let_in(int door, bool neighbour) {
    for (int accepted = 0; accepted < kAcceptsPerTurn; ++accepted) {
        Address from;
        UniqueFd fd = accept_one(door, from);
        if (!fd) {
            return;
        }
        if ((!neighbour || same_user(fd.get())) && downs_.size() < kMaxNeighbours) {
            welcome(std::move(fd), neighbour, from);
        }
    }
}

void Neighbours::welcome(UniqueFd fd, bool neighbour, const Address& from) {
    if (!neighbour) {
        tune(fd.get());
    }
    auto link = std::make_unique<Link>(links_, std::move(fd), *this);
    Link* const raw = link.get();
    downs_[raw].link = std::move(link);
    if (neighbour && up_ == nullptr) {
        raw->hold(true);  // what it says waits in the kernel
    } else if (neighbour) {
        raw->send(wire::make_frame(wire::Type::Ready, 0, 0, {}));
    } else {
        raw->limit(wire::longest(wire::Type::Join));
        strangers_.push_back({raw, Clock::now(), from});
    }
    if (strangers_.size() > kMaxStrangers) {
        const std::size_t victim = who_makes_way(
            strangers_, [](const Stranger& stranger) -> const Address& { return stranger.from; });
        strangers_[victim].link->end("makes way");
        strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(victim));
    }
}

// The kernel tells of those who wait, or not.
void Neighbours::open_doors(bool open) {
    const std::uint32_t events = open ? std::uint32_t{EPOLLIN} : 0;
    if (door_.fd) {
        links_.poller.change(door_.fd.get(), events, &door_);
    }
    for (Door& door : host_doors_) {
        links_.poller.change(door.listening, events, &door);
    }
}

bool Neighbours::stranger(const Link& link) const {
    return std::any_of(strangers_.begin(), strangers_.end(),
                       [&link](const Stranger& one) { return one.link == &link; });
}

// The first word of another host.
bool Neighbours::admit(Link& link, const wire::Header& header, std::span<const std::byte> payload) {
    wire::Nonce secret;
    if (header.type != wire::Type::Join || !wire::decode_join(payload, secret) ||
        !wire::equal(secret, secret_)) {
        return false;
    }
    std::erase_if(strangers_, [&link](const Stranger& one) { return one.link == &link; });
    link.limit(0);
    link.send(wire::make_frame(wire::Type::Ready, 0, 0, {}));
    return true;
}

void Neighbours::way_opened(Link& up) {
    up_ = &up;
    say_ready();
    hold(false);
}

void Neighbours::way_lost() {
    up_ = nullptr;
    for (auto& [raw, down] : downs_) {
        down.ranks.clear();  // there is nobody to be told of
        raw->end("the leader is gone");
    }
    routes_.clear();
}

void Neighbours::pass_down(const wire::Header& header, std::span<const std::byte> whole) {
    const auto copy = [whole] {
        return std::make_shared<const std::vector<std::byte>>(whole.begin(), whole.end());
    };
    if (header.rank != wire::kEveryone) {
        const auto route = routes_.find({header.council, header.rank});
        if (route != routes_.end()) {
            route->second->send(copy());
        }
        return;
    }
    wire::Frame frame;
    for (auto& [raw, down] : downs_) {
        if (down.councils.count(header.council) != 0) {
            if (frame == nullptr) {
                frame = copy();
            }
            raw->send(frame);
        }
    }
}

// A rank's first frame: where answers to it go.
bool Neighbours::introduce(Down& down, const Rank& rank, std::span<const std::byte> payload) {
    wire::Hello hello;
    if (!wire::decode(payload, hello) || hello.rank != rank.second ||
        wire::council_of(hello.nonce) != rank.first) {
        return false;
    }
    const auto route = routes_.find(rank);
    if (route != routes_.end() && route->second != down.link.get()) {
        const auto old = downs_.find(route->second);
        if (old != downs_.end()) {
            forget(old->second, rank);
        }
    }
    routes_[rank] = down.link.get();
    if (down.ranks.insert(rank).second) {
        ++down.councils[rank.first];
    }
    return true;
}

void Neighbours::forget(Down& down, const Rank& rank) {
    if (down.ranks.erase(rank) == 0) {
        return;
    }
    const auto council = down.councils.find(rank.first);
    if (--council->second == 0) {
        down.councils.erase(council);
    }
    const auto route = routes_.find(rank);
    if (route != routes_.end() && route->second == down.link.get()) {
        routes_.erase(route);
    }
}

bool Neighbours::take(Link& link, const wire::Header& header, std::span<const std::byte> payload) {
    const auto found = downs_.find(&link);
    if (found == downs_.end() || up_ == nullptr) {
        return false;
    }
    Down& down = found->second;
    if (stranger(link)) {
        return admit(link, header, payload);
    }
    const Rank rank{header.council, header.rank};
    if (header.type == wire::Type::Hello && !introduce(down, rank, payload)) {
        return false;
    }
    if (down.ranks.count(rank) == 0) {
        return true;  // it has come another way meanwhile
    }
    const std::span<const std::byte> whole = link.whole();
    up_->send(std::make_shared<const std::vector<std::byte>>(whole.begin(), whole.end()));
    if (header.type == wire::Type::Leave || header.type == wire::Type::Gone) {
        forget(down, rank);
    }
    if (up_->waiting() > kMaxOnTheWay) {
        hold(true);
    }
    return true;
}

void Neighbours::hold(bool held) {
    held_ = held;
    for (auto& [raw, down] : downs_) {
        raw->hold(held);
    }
}

void Neighbours::step(Clock::time_point now) {
    while (!strangers_.empty() && now - strangers_.front().since >= pace().silence) {
        strangers_.front().link->end("has not said the secret");
        strangers_.erase(strangers_.begin());
    }
    if (now >= let_in_again_) {
        let_in_again_ = kNever;
        open_doors(true);
    }
    if (up_ == nullptr) {
        return;
    }
    if (held_ && up_->waiting() < kMaxOnTheWay / 2) {
        hold(false);
        drain();
    }
    if (now >= next_beat_ && !downs_.empty()) {
        next_beat_ = now + pace().beat;
        say_ready();
    }
}

Clock::time_point Neighbours::due() const {
    const bool beats = up_ != nullptr && !downs_.empty();
    return std::min({let_in_again_, beats ? next_beat_ : kNever,
                     strangers_.empty() ? kNever : strangers_.front().since + pace().silence});
}

void Neighbours::overslept(Clock::duration slept) {
    for (Stranger& stranger : strangers_) {
        stranger.since += slept;
    }
}

void Neighbours::say_ready() {
    const wire::Frame frame = wire::make_frame(wire::Type::Ready, 0, 0, {});
    for (auto& [raw, down] : downs_) {
        if (!stranger(*raw)) {
            raw->send(frame);
        }
    }
}

void Neighbours::ended(Link& link, const std::string& /*how*/) {
    const auto found = downs_.find(&link);
    if (found == downs_.end()) {
        return;
    }
    Down& down = found->second;
    while (!down.ranks.empty()) {
        const Rank rank = *down.ranks.begin();
        if (up_ != nullptr) {
            up_->send(wire::make_frame(wire::Type::Gone, rank.first, rank.second, {}));
        }
        forget(down, rank);
    }
    std::erase_if(strangers_, [&link](const Stranger& one) { return one.link == &link; });
    downs_.erase(found);
}

void Neighbours::drain() {
    if (up_ == nullptr) {
        return;
    }
    for (auto& [raw, down] : downs_) {
        raw->read();
    }
}

}  // namespace deft::agreement
