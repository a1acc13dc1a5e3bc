// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/service.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "shim/agreement/leader_role.h"
#include "shim/agreement/process_number.h"
#include "shim/agreement/seal.h"
#include "shim/agreement/surroundings.h"

namespace deft::agreement {
namespace {

constexpr std::size_t kStackBytes = 512 * 1024;
constexpr std::size_t kMaxIssued = 4096;
// Ranks that come when it is over are told so; to older ones the leader is a stranger.
constexpr std::size_t kOverKept = 256;
constexpr auto kExitDeadline = std::chrono::seconds(1);

bool load_secret(std::string& why) {
    const std::string& path = Config::process().text(Key::SecretFile);
    std::string problem;
    if (Seal::load(path, problem)) {
        return true;
    }
    why = "DEFT_SECRET_FILE='" + path + "': " + problem;
    return false;
}

// NCCL's ncclBootstrapHandle (2.13 to 2.30): a random number of 8 bytes, and the socket address of
// the bootstrap's root, of which no more than a sockaddr_in6 is kept.
constexpr std::size_t kBootstrapAt = 8;

// Where NCCL's bootstrap of this id listens: every rank reaches it. AF_UNSPEC: not known.
Address bootstrap_of(const deft_nccl_unique_id_t& id) {
    sockaddr_storage storage{};
    static_assert(kBootstrapAt + sizeof(sockaddr_in6) <= wire::kTrailerAt);
    std::memcpy(&storage, id.internal + kBootstrapAt, sizeof(sockaddr_in6));
    Address address;
    if (!from_sockaddr(reinterpret_cast<sockaddr*>(&storage), address, nullptr)) {
        return {};
    }
    const bool said = std::any_of(address.bytes.begin(), address.bytes.begin() + address.size(),
                                  [](std::uint8_t byte) { return byte != 0; });
    return said ? address : Address{};
}

// The address that this host has on the way there; AF_UNSPEC: none. Sends nothing.
Address own_address_towards(const Address& other) {
    Address own;
    if (other.family == AF_UNSPEC || other.link_local()) {
        return own;  // of which interface, only its own host knows
    }
    const UniqueFd fd(::socket(other.family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    socklen_t length = to_sockaddr(other, 9, storage);
    auto* const place = reinterpret_cast<sockaddr*>(&storage);
    if (!fd || ::connect(fd.get(), place, length) != 0) {
        return own;
    }
    length = sizeof(storage);
    if (::getsockname(fd.get(), place, &length) != 0 || !from_sockaddr(place, own, nullptr)) {
        return {};
    }
    return own;
}

}  // namespace

Service& Service::process() {
    static Service& service = *new Service();  // never destroyed: threads may use it to the end
    return service;
}

std::span<const std::byte, wire::kTrailerBytes> Service::trailer_of(
    const deft_nccl_unique_id_t& id) {
    return std::as_bytes(std::span(id.internal)).subspan<wire::kTrailerAt, wire::kTrailerBytes>();
}

bool Service::issue(deft_nccl_unique_id_t& id, Maker maker, std::string& why) {
    for (std::size_t i = wire::kTrailerAt; i < sizeof(id.internal); ++i) {
        if (id.internal[i] != 0) {
            why = "this NCCL uses the spare bytes of its unique id";
            return false;
        }
    }
    wire::Trailer trailer;
    trailer.maker = static_cast<std::uint16_t>(maker);
    if (!issue(trailer, bootstrap_of(id), why)) {
        return false;
    }
    wire::encode(trailer, std::as_writable_bytes(std::span(id.internal))
                              .subspan<wire::kTrailerAt, wire::kTrailerBytes>());
    return true;
}

// reached_by: an address of this host by which the other ranks are known to reach it, if any.
bool Service::issue(wire::Trailer& trailer, const Address& reached_by, std::string& why) {
    if (!random_bytes(trailer.nonce.data(), trailer.nonce.size())) {
        why = std::string("no random numbers: ") + std::strerror(errno);
        return false;
    }
    if (!load_secret(why)) {
        return false;
    }
    const std::uint64_t process = process_number();
    std::memcpy(trailer.nonce.data(), &process, sizeof(process));
    const Monitor::Lock lock(monitor_);
    if (listener_ == nullptr || !listener_->ours()) {
        listener_ = Listener::open(process_interfaces(), why);
        if (listener_ == nullptr) {
            return false;
        }
    }
    std::string other_why;
    if (reached_by.family != AF_UNSPEC && !listener_->prefer(reached_by, other_why)) {
        DEFT_INFO("the ranks cannot meet where NCCL's bootstrap does: %s", other_why.c_str());
    }
    listener_->fill(trailer);
    if (issued_.size() == kMaxIssued) {
        // Ids that were never used, or whose communicators have ended.
        const auto unused = std::find_if(issued_.begin(), issued_.end(),
                                         [](const Issued& old) { return !old.joined || old.over; });
        if (unused == issued_.end()) {
            why = "too many communicators at once";
            return false;
        }
        issued_.erase(unused);
        forgotten_ = true;
        wake();
    }
    Issued issued;
    issued.nonce = trailer.nonce;
    issued.maker = ::getpid();
    issued_.push_back(issued);
    return true;
}

CouncilRef Service::join(const deft_nccl_unique_id_t& id, int nranks, int rank,
                         const Terms& terms) {
    wire::Trailer trailer;
    if (nranks <= 0 || rank < 0 || rank >= nranks ||
        wire::decode(trailer_of(id), trailer) != wire::Decoded::Ok) {
        return {};
    }
    std::string why;
    if (!load_secret(why)) {
        DEFT_WARN_ONCE("the ranks cannot agree, so every call is forwarded: %s", why.c_str());
        return {};
    }
    CouncilRef council;
    {
        const Monitor::Lock lock(monitor_);
        if (!start()) {
            return {};
        }
        fresh_.reserve(fresh_.size() + 1);
        Issued* own = nullptr;
        for (Issued& issued : issued_) {
            if (issued.maker == ::getpid() && !issued.joined &&
                wire::equal(issued.nonce, trailer.nonce)) {
                own = &issued;
            }
        }
        council = Council::Core::make(rank, nranks, own != nullptr, terms);
        Council::Core& core = *council->core_;
        root_ = bootstrap_of(id).family != AF_UNSPEC ? bootstrap_of(id) : root_;
        if (own != nullptr) {
            auto leader = std::make_unique<LeaderRole>(core, wire::council_of(trailer.nonce));
            own->joined = true;
            own->leader = leader.get();
            core.role = std::move(leader);
        } else {
            core.role = std::make_unique<MemberRole>(core, *this, trailer);
        }
        fresh_.push_back(council);
    }
    wake();
    return council;
}

CouncilRef Service::inherit(Council& parent, std::uint64_t child, int nranks, int rank,
                            const Terms& terms) {
    if (nranks <= 0 || rank < 0 || rank >= nranks) {
        return {};
    }
    Council::Core& above = *parent.core_;
    if (rank == 0) {
        wire::Trailer trailer;
        std::string why;
        Address root;
        {
            const Monitor::Lock lock(monitor_);
            root = root_;
        }
        if (!issue(trailer, own_address_towards(root), why)) {
            DEFT_WARN_ONCE("the calls of a split communicator are forwarded: %s", why.c_str());
            return {};
        }
        wire::Meeting meeting;
        meeting.child = child;
        wire::encode(trailer, meeting.trailer);
        deft_nccl_unique_id_t id{};
        std::memcpy(id.internal + wire::kTrailerAt, meeting.trailer.data(), meeting.trailer.size());
        CouncilRef council = join(id, nranks, rank, terms);
        if (council) {
            const Monitor::Lock lock(above.monitor);
            above.posts.push_back(meeting);
        }
        wake();
        return council;
    }
    CouncilRef council;
    {
        const Monitor::Lock lock(monitor_);
        if (!start()) {
            return {};
        }
        council = Council::Core::make(rank, nranks, false, terms);
        council->core_->role = std::make_unique<MemberRole>(*council->core_, *this);
        fresh_.push_back(council);
    }
    {
        const Monitor::Lock lock(above.monitor);
        above.questions.push_back({child, council});
    }
    wake();
    return council;
}

void Service::wake() noexcept {
    const int fd = wake_fd_.load(std::memory_order_acquire);
    if (fd >= 0) {
        const std::uint64_t one = 1;
        (void)!::write(fd, &one, sizeof(one));
    }
}

bool Service::start() {
    if (thread_ != Thread::None) {
        return thread_ == Thread::Running;
    }
    thread_ = Thread::Failed;
    Surroundings::look();
    UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const bool ready = wake && links_.poller.open() &&
                       links_.poller.add(wake.get(), EPOLLIN, static_cast<Watcher*>(this));
    int error = ready ? 0 : errno;
    if (ready) {
        wake_fd_.store(wake.release(), std::memory_order_release);
        error = start_thread("deft-agree", kStackBytes, thread_main, this);
        if (error == 0) {
            ::atexit([] { at_exit(); });
            owner_ = ::getpid();
            thread_ = Thread::Running;
            return true;
        }
    }
    DEFT_WARN("the ranks cannot agree, so every call is forwarded: no thread for it (%s)",
              std::strerror(error));
    return false;
}

void* Service::thread_main(void* self) noexcept {
    auto* const service = static_cast<Service*>(self);
    try {
        service->run();
    } catch (...) {
        DEFT_WARN_ONCE("the ranks can agree on nothing any more: out of memory");
    }
    service->give_up();
    Monitor::Lock lock(service->monitor_);
    service->thread_ = Thread::Failed;
    service->finished_ = true;
    lock.notify();
    return nullptr;
}

void Service::at_exit() noexcept {
    Service& service = process();
    if (service.owner_.load() != ::getpid()) {
        return;  // a forked child has no thread, and a lock may be held for ever
    }
    {
        const Monitor::Lock lock(service.monitor_);
        service.stop_ = true;
    }
    service.wake();
    const Clock::time_point deadline = Clock::now() + kExitDeadline;
    Monitor::Lock lock(service.monitor_);
    while (!service.finished_ && lock.wait_until(deadline)) {
    }
}

// The end of the thread: the others are told as far as the kernel takes it at once.
void Service::give_up() noexcept {
    try {
        take_fresh();
        for (const CouncilRef& council : councils_) {
            {
                const MutexLock calls(council->core_->calling);
                council->core_->member = nullptr;
            }
            council->leave();
            if (council->core_->role != nullptr) {
                council->core_->role->step(Clock::now());
            }
        }
        for (const auto& [process, uplink] : uplinks_) {
            uplink->last_words();
        }
    } catch (...) {
    }
}

void Service::run() {
    awake_at_ = Clock::now();
    for (;;) {
        {
            const Monitor::Lock lock(monitor_);
            if (stop_) {
                return;
            }
        }
        take_fresh();
        // A stop since then is taken note of by the next wait().
        const Clock::time_point now = awake_at_;
        for (const CouncilRef& council : councils_) {
            council->core_->role->step(now);
        }
        for (std::size_t i = 0; i < councils_.size();) {
            if (councils_[i]->core_->role->finished()) {
                end(*councils_[i]);
                councils_.erase(councils_.begin() + static_cast<std::ptrdiff_t>(i));
            } else {
                ++i;
            }
        }
        for (const auto& [process, uplink] : uplinks_) {
            uplink->step(now);
        }
        Link::tell_ends(links_);
        std::erase_if(uplinks_, [now](const auto& entry) { return entry.second->idle(now); });
        send_stale_away(now);
        open_doors(now);
        wait();
        Link::tell_ends(links_);
    }
}

Uplink& Service::way_to(const wire::Trailer& trailer) {
    std::unique_ptr<Uplink>& uplink = uplinks_[wire::process_of(trailer.nonce)];
    if (uplink == nullptr) {
        uplink = std::make_unique<Uplink>(links_, trailer);
    } else {
        uplink->learn(trailer);
    }
    return *uplink;
}

void Service::take_fresh() {
    std::vector<CouncilRef> fresh;
    bool sift = false;
    {
        const Monitor::Lock lock(monitor_);
        fresh.swap(fresh_);
        sift = std::exchange(forgotten_, false);
    }
    for (CouncilRef& council : fresh) {
        if (council->is_leader()) {
            sift = true;
        }
        councils_.push_back(std::move(council));
    }
    if (!sift) {
        return;
    }
    // Those that came before their leader, or wait for one that cannot come any more.
    std::map<std::pair<std::uint64_t, std::uint32_t>, Early> waiting;
    waiting.swap(early_);
    for (auto& [rank, early] : waiting) {
        LeaderRole* leader = nullptr;
        bool known = false;
        {
            const Monitor::Lock lock(monitor_);
            for (const Issued& issued : issued_) {
                if (wire::equal(issued.nonce, early.hello.nonce)) {
                    known = true;
                    leader = issued.leader;
                }
            }
        }
        if (leader != nullptr) {
            (void)admit(std::move(early), leader);
        } else if (known) {
            early_.emplace(rank, std::move(early));
        } else if (Link* const link = early.link; !in_use(*link)) {
            link->end("waits for nobody");
        }
    }
}

// Its last reference may be the caller's.
void Service::end(Council& council) {
    {
        const Monitor::Lock lock(monitor_);
        for (Issued& issued : issued_) {
            if (issued.leader != nullptr && issued.leader == council.core_->role.get()) {
                issued.leader = nullptr;
                issued.over = true;
            }
        }
        const auto over = [](const Issued& issued) { return issued.over; };
        if (std::count_if(issued_.begin(), issued_.end(), over) >
            static_cast<std::ptrdiff_t>(kOverKept)) {
            issued_.erase(std::find_if(issued_.begin(), issued_.end(), over));
            forgotten_ = true;
        }
    }
    std::erase_if(leaders_, [&council](const auto& entry) {
        return entry.second == council.core_->role.get();
    });
    council.core_->role.reset();
    const Monitor::Lock lock(council.core_->monitor);
    council.core_->let_memory_go();
}

}  // namespace deft::agreement
