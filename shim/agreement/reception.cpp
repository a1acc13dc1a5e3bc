// SPDX-License-Identifier: Apache-2.0
// The agreement thread's wait for its connections, and who may come in.
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "shim/agreement/descriptors.h"
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
// Turns that take longer are no delay of a busy processor's: the process did not run.
constexpr auto kNoDelay = std::chrono::milliseconds(500);

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
    for (const CouncilRef& council : councils_) {
        due = std::min(due, council->core_->role->due());
    }
    Clock::duration most{};
    if (due != kNever) {
        // Not for long, while a deadline runs: who has slept longer was stopped.
        most = std::clamp<Clock::duration>(due - Clock::now(), Clock::duration{}, pace().beat);
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(most).count();
        links_.poller.wait(static_cast<int>(left));
    } else {
        links_.poller.wait(-1);
    }
    const Clock::time_point now = Clock::now();
    if (due != kNever && now - awake_at_ > most + kNoDelay) {
        overslept(now - awake_at_ - most);
    }
    awake_at_ = now;
    links_.poller.tell();
}

// The process was stopped, its machine moved or short of memory: who was silent meanwhile may have
// said a lot that waits to be read.
void Service::overslept(Clock::duration slept) {
    for (const std::unique_ptr<Guest>& guest : guests_) {
        guest->since += slept;
    }
    for (const auto& [process, uplink] : uplinks_) {
        uplink->overslept(slept);
    }
    for (const CouncilRef& council : councils_) {
        council->core_->role->overslept(slept);
    }
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

void Service::accept_all(int door, Clock::time_point now) {
    for (std::size_t accepted = 0; accepted < kAcceptsPerTurn; ++accepted) {
        if (!make_room_for_one_more(door)) {
            pause_accepting(now);
            return;
        }
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
    if (header.type == wire::Type::Name) {
        Guest* const guest = guest_of(link);
        return guest != nullptr && guest->process == 0 &&
               wire::decode_name(payload, guest->process);
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
    Guest& guest = *guest_of(link);
    guest.process = guest.process != 0 ? guest.process : hello.process;
    if (known_.count(&link) == 0) {
        prove(link);
        meet(guest);
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

// ---- a tree of hosts ----------------------------------------------------------------------------

// A host has come, perhaps for the second time: then it is behind no other one any more.
void Service::meet(Guest& guest) {
    for (const auto& [link, other] : known_) {
        other->behind.erase(guest.process);
    }
    ask_to_serve();
    spread();
}

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
        const bool room = guest->offer && guest->behind.size() < kBehind;
        if (room && (best == nullptr || guest->behind.size() < best->behind.size())) {
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
            relay->behind.insert(guest->process);
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
