// SPDX-License-Identifier: Apache-2.0
// The agreement thread's wait for its connections, and who may come in.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "shim/agreement/leader_role.h"
#include "shim/agreement/service.h"
#include "topology/fair_room.h"

namespace deft::agreement {
namespace {

constexpr std::size_t kMaxGuests = 256;
constexpr std::size_t kMaxEarly = 65536;
constexpr std::size_t kAcceptsPerTurn = 64;
constexpr auto kHelloLimit = std::chrono::seconds(5);
// Hosts behind one that relays for others.
constexpr std::size_t kBehind = 64;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Descriptors that are left to the job: so many, and a quarter of those that it may have.
constexpr rlim_t kLeftToTheJob = 256;

}  // namespace

void Service::ready(std::uint32_t /*events*/, Clock::time_point /*now*/) {
    std::uint64_t count = 0;
    (void)!::read(wake_fd_.load(), &count, sizeof(count));
}

void Service::wait() {
    Clock::time_point due = accept_again_;
    if (!guests_.empty()) {
        due = std::min(due, guests_.front()->since + kHelloLimit);  // in order of arrival
    }
    for (const auto& [process, uplink] : uplinks_) {
        due = std::min(due, uplink->due());
    }
    for (Council* council : councils_) {
        due = std::min(due, council->core_->role->due());
    }
    int timeout = -1;
    if (due != kNever) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
        timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
    }
    links_.poller.wait(timeout);
}

// ---- who comes in -------------------------------------------------------------------------------

// Sockets that listen since the last turn; and all of them, after a pause.
void Service::open_doors(Clock::time_point now) {
    {
        const Monitor::Lock lock(monitor_);
        if (listener_ != nullptr && listener_->ours()) {
            for (std::size_t i = doors_.size(); i < listener_->size(); ++i) {
                doors_.emplace_back(*this, listener_->fd(i));
                (void)links_.poller.add(doors_.back().fd, EPOLLIN, &doors_.back());
            }
        }
    }
    if (now >= accept_again_) {
        accept_again_ = kNever;
        for (Door& door : doors_) {
            links_.poller.change(door.fd, EPOLLIN, &door);
        }
    }
}

// A full table of descriptors is waited out: those who come meanwhile stay in the kernel's queue.
void Service::pause_accepting(Clock::time_point now) {
    accept_again_ = now + kAcceptPause;
    for (Door& door : doors_) {
        links_.poller.change(door.fd, 0, &door);
    }
}

// The lowest free number is the next descriptor's, so the number says how many there are. False: it
// would be one of those that are left to the job.
bool Service::room_for(int fd, Clock::time_point now) {
    rlimit limit{};
    const auto beyond = [&] {
        const rlim_t left = std::min(kLeftToTheJob, limit.rlim_cur / 4);
        return static_cast<rlim_t>(fd) + left >= limit.rlim_cur;
    };
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || !beyond()) {
        return true;
    }
    if (limit.rlim_cur < limit.rlim_max) {
        const rlim_t before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) {
            DEFT_INFO("this process leads many hosts: it may open %llu files instead of %llu",
                      static_cast<unsigned long long>(limit.rlim_cur),
                      static_cast<unsigned long long>(before));
            if (!beyond()) {
                return true;
            }
        }
    }
    DEFT_WARN_ONCE(
        "not all ranks can connect to this process, which leads them: it may open %llu files, of "
        "which the job needs some; raise the hard limit of open files (ulimit -Hn)",
        static_cast<unsigned long long>(limit.rlim_cur));
    pause_accepting(now);
    return false;
}

void Service::accept_all(int door, Clock::time_point now) {
    for (std::size_t accepted = 0; accepted < kAcceptsPerTurn; ++accepted) {
        sockaddr_storage storage{};
        socklen_t length = sizeof(storage);
        auto* const address = reinterpret_cast<sockaddr*>(&storage);
        UniqueFd fd(::accept4(door, address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!fd) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                pause_accepting(now);
            }
            return;
        }
        if (!room_for(fd.get(), now)) {
            return;
        }
        tune(fd.get());
        auto guest = std::make_unique<Guest>();
        guest->since = now;
        (void)from_sockaddr(address, guest->from, nullptr);
        guest->link = std::make_unique<Link>(links_, std::move(fd), *this);
        Link& link = *guest->link;
        link.limit(wire::longest(wire::Type::Hello));
        guests_.push_back(std::move(guest));
        // Who knows the protocol has said hello by now: it never waits among the others.
        link.read();
        make_room();
    }
}

void Service::make_room() {
    if (guests_.size() <= kMaxGuests) {
        return;
    }
    const std::size_t victim = who_makes_way(
        guests_, [](const std::unique_ptr<Guest>& guest) -> const Address& { return guest->from; });
    guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(victim));
    strangers_.fetch_add(1, std::memory_order_relaxed);
}

void Service::send_stale_away(Clock::time_point now) {
    for (const std::unique_ptr<Guest>& guest : guests_) {
        if (now - guest->since < kHelloLimit) {
            break;
        }
        guest->link->end("has not said hello");
    }
    Link::tell_ends(links_);
}

// ---- what they say ------------------------------------------------------------------------------

Service::Guest* Service::guest_of(Link& link) {
    const auto known = known_.find(&link);
    if (known != known_.end()) {
        return known->second.get();
    }
    const auto guest = std::find_if(guests_.begin(), guests_.end(),
                                    [&link](const auto& one) { return one->link.get() == &link; });
    return guest != guests_.end() ? guest->get() : nullptr;
}

// It has said a proper hello.
void Service::prove(Link& link) {
    const auto guest = std::find_if(guests_.begin(), guests_.end(),
                                    [&link](const auto& one) { return one->link.get() == &link; });
    if (guest != guests_.end()) {
        link.limit(0);
        known_[&link] = std::move(*guest);
        guests_.erase(guest);
    }
}

bool Service::in_use(Link& link) const {
    const auto has = [&link](const auto& entry) { return entry.second->uses(link); };
    return std::any_of(leaders_.begin(), leaders_.end(), has) ||
           std::any_of(early_.begin(), early_.end(),
                       [&link](const auto& entry) { return entry.second.link == &link; });
}

bool Service::take(Link& link, const wire::Header& header, std::span<const std::byte> payload) {
    if (header.type == wire::Type::Hello) {
        return hear_hello(link, header, payload);
    }
    if (header.type == wire::Type::Offer) {
        return take_offer(link, payload);
    }
    const auto leader = leaders_.find(header.council);
    if (known_.count(&link) == 0) {
        return false;
    }
    if (leader != leaders_.end()) {
        return leader->second->take(link, header, payload) || in_use(link);
    }
    if (header.type == wire::Type::Leave) {
        const auto early = early_.find({header.council, header.rank});
        if (early != early_.end() && early->second.link == &link) {
            early->second.left = true;
        }
    }
    return true;  // of a communicator that has ended here
}

bool Service::hear_hello(Link& link, const wire::Header& header,
                         std::span<const std::byte> payload) {
    wire::Hello hello;
    if (!wire::decode(payload, hello) || hello.rank != header.rank ||
        wire::council_of(hello.nonce) != header.council) {
        return false;
    }
    LeaderRole* leader = nullptr;
    bool known = false;
    bool over = false;
    {
        const Monitor::Lock lock(monitor_);
        for (const Issued& issued : issued_) {
            if (wire::equal(issued.nonce, hello.nonce)) {
                known = issued.maker == ::getpid();
                over = issued.over;
                leader = issued.leader;
            }
        }
    }
    const auto refuse = [&](const char* why) {
        link.send(wire::make_frame(wire::Type::Verdict, header.council, header.rank,
                                   wire::encode(wire::Verdict{false, why, true, false})));
        return true;
    };
    if (!known && !over) {
        return known_.count(&link) != 0 && refuse("the leader has forgotten the communicator");
    }
    if (link.gone()) {
        return true;  // its leader would take it for a member, and its second attempt for a twin
    }
    prove(link);
    Guest& guest = *known_.at(&link);
    if (guest.process == 0) {
        guest.process = hello.process;
        ask_to_serve();
        spread();
    }
    if (over) {
        return refuse("the leader has ended its communicator");
    }
    return admit({&link, hello, hello.process == 0 || hello.process == guest.process}, leader) ||
           in_use(link);
}

// False: nonsense.
bool Service::admit(Early&& early, LeaderRole* leader) {
    const std::uint64_t council = wire::council_of(early.hello.nonce);
    if (leader == nullptr) {
        // As with the leader: the same rank again, whose first connection broke.
        const std::pair<std::uint64_t, std::uint32_t> rank{council, early.hello.rank};
        if (early_.size() < kMaxEarly || early_.count(rank) != 0) {
            early_.insert_or_assign(rank, std::move(early));
        }
        return true;
    }
    leaders_[council] = leader;
    if (!leader->adopt(*early.link, early.hello, early.own)) {
        return false;
    }
    if (early.left) {
        const wire::Header leave{wire::Type::Leave, 0, council, early.hello.rank};
        (void)leader->take(*early.link, leave, {});
    }
    return true;
}

// ---- a tree of hosts
// ------------------------------------------------------------------------------

// Half of those that may stay relay for others. They are asked before it is too late.
void Service::ask_to_serve() {
    const std::size_t direct = direct_.load(std::memory_order_relaxed);
    if (known_.size() < direct / 2) {
        return;
    }
    auto asked = static_cast<std::size_t>(std::count_if(
        known_.begin(), known_.end(), [](const auto& entry) { return entry.second->asked; }));
    for (const auto& [link, guest] : known_) {
        if (asked >= (direct + 1) / 2) {
            return;
        }
        if (guest->process != 0 && !guest->asked && guest->moved_to == 0) {
            guest->asked = true;
            ++asked;
            link->send(wire::make_frame(wire::Type::Serve, 0, 0, {}));
        }
    }
}

bool Service::take_offer(Link& link, std::span<const std::byte> payload) {
    const auto guest = known_.find(&link);
    wire::Trailer trailer;
    if (guest == known_.end() || !guest->second->asked || !wire::decode_offer(payload, trailer)) {
        return false;
    }
    guest->second->offer = trailer;
    spread();
    return true;
}

Service::Guest* Service::relay_with_room() {
    Guest* best = nullptr;
    for (const auto& [link, guest] : known_) {
        const bool room = guest->offer && guest->behind < kBehind;
        if (room && (best == nullptr || guest->behind < best->behind)) {
            best = guest.get();
        }
    }
    return best;
}

// Sends those that are too many to others, as far as those have said where.
void Service::spread() {
    const std::size_t direct = direct_.load(std::memory_order_relaxed);
    if (known_.size() <= direct) {
        return;
    }
    std::size_t stay =
        static_cast<std::size_t>(std::count_if(known_.begin(), known_.end(), [](const auto& entry) {
            return entry.second->moved_to == 0;
        }));
    for (const auto& [link, guest] : known_) {
        Guest* const relay = stay > direct ? relay_with_room() : nullptr;
        if (relay == nullptr) {
            return;
        }
        if (guest->moved_to == 0 && !guest->asked && guest->process != 0) {
            guest->moved_to = relay->process;
            ++relay->behind;
            --stay;
            link->send(wire::make_frame(wire::Type::Move, 0, 0, wire::encode_offer(*relay->offer)));
        }
    }
}

// Who was sent there too late, and so is here still, may be sent to another one.
void Service::relay_ended(std::uint64_t process) {
    for (const auto& [link, guest] : known_) {
        if (guest->moved_to == process) {
            guest->moved_to = 0;
        }
    }
    ask_to_serve();
    spread();
}

void Service::ended(Link& link, const std::string& how) {
    const auto known = known_.find(&link);
    if (known != known_.end()) {
        std::erase_if(early_, [&link](const auto& entry) { return entry.second.link == &link; });
        for (const auto& [council, leader] : leaders_) {
            leader->link_ended(link, how, known->second->moved_to != 0);
        }
        const std::uint64_t process = known->second->offer ? known->second->process : 0;
        known_.erase(known);
        relay_ended(process);
        return;
    }
    if (link.stream().other_secret()) {
        const Guest* const guest = guest_of(link);
        suspicion_ = "; a connection from " +
                     (guest != nullptr ? guest->from.text() : std::string("somewhere")) +
                     " had another shared secret than DEFT_SECRET_FILE's here, or none";
    }
    if (link.stream().other_version()) {
        DEFT_WARN_ONCE(
            "a rank's deft speaks another protocol version than this one: install the same "
            "release on all hosts");
    }
    strangers_.fetch_add(1, std::memory_order_relaxed);
    DEFT_DEBUG("dropped a connection that did not say a proper hello: it %s", how.c_str());
    std::erase_if(guests_, [&link](const auto& guest) { return guest->link.get() == &link; });
}

}  // namespace deft::agreement
