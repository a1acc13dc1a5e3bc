// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/nic.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "softdev/verbs/faults.h"
#include "softdev/verbs/listener.h"
#include "softdev/verbs/port_watch.h"
#include "softdev/verbs/queue_pair.h"

namespace softdev::verbs {
namespace {

constexpr std::uint64_t kWakeUp = 0;  // instead of an endpoint's id

}  // namespace

class Nic::Group : public Listener {
public:
    using Listener::Listener;
    std::bitset<256> used;
    unsigned next = 0;
};

class Nic::PortWatch : public NetlinkWatch {
public:
    using NetlinkWatch::NetlinkWatch;
};

Nic::Nic(const DeviceSettings& settings) : ece(settings.ece) {
    int port_number = 0;
    for (const PortSettings& port : settings.ports) {
        ports_.emplace_back(port, ++port_number);
    }
    seen_.resize(ports_.size());
}

Nic::~Nic() {
    stopping_ = true;
    if (thread_.joinable()) {
        wake();
        thread_.join();
    }
}

int Nic::start() {
    epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    wake_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kWakeUp;
    if (!epoll_ || !wake_ || async.fd() < 0 ||
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
        return errno;
    }
    port_watch_ = std::make_unique<PortWatch>(*this);
    if (!port_watch_->fd) {
        return errno;
    }
    {
        const deft::MutexLock lock(mutex);
        watch(*port_watch_, EPOLLIN);
        // What changed before the kernel was asked to tell of changes.
        std::transform(ports_.begin(), ports_.end(), seen_.begin(),
                       [](const Port& port) { return look_up(port.settings().netdev); });
    }
    // The program's signals are for its own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    try {
        thread_ = std::thread([this] { run(); });
        pthread_setname_np(thread_.native_handle(), "softverbs-nic");
    } catch (const std::system_error&) {
        error = EAGAIN;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

void Nic::run() {
    std::array<epoll_event, 32> events;
    while (!stopping_) {
        int wait = -1;
        {
            const deft::MutexLock lock(mutex);
            wait = timers_.milliseconds_to_next();
        }
        const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait);
        for (int i = 0; i < count; ++i) {
            const auto& event = events[static_cast<std::size_t>(i)];
            if (event.data.u64 == kWakeUp) {
                take_wake_up();
                continue;
            }
            const deft::MutexLock lock(mutex);
            handle(event.data.u64, event.events);
        }
        const deft::MutexLock lock(mutex);
        take_posts();
        timers_.run_due();
        discarded_.clear();
    }
}

void Nic::take_posts() {
    if (posts_wait_.exchange(false, std::memory_order_acq_rel)) {
        for (const auto& [number, qp] : qps_) {
            qp->take_posts();
        }
    }
}

void Nic::take_wake_up() {
    std::uint64_t ignored = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &ignored, sizeof ignored);
}

// An endpoint may have gone since the kernel named it.
void Nic::handle(std::uint64_t id, unsigned events) {
    const auto found = endpoints_.find(id);
    if (found != endpoints_.end()) {
        found->second->ready(events);
    }
    discarded_.clear();
}

void Nic::help() {
    if (!mutex.try_lock()) {
        return;
    }
    const deft::MutexLock lock(mutex, std::adopt_lock);
    take_posts();
    std::array<epoll_event, 8> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
        const auto& event = events[static_cast<std::size_t>(i)];
        // A wake-up is for the thread: it has a new timer to wait for, and only it knows how long
        // it is waiting now. Who took it away here would let the thread sleep on.
        if (event.data.u64 != kWakeUp) {
            handle(event.data.u64, event.events);
        }
    }
    timers_.run_due();
    discarded_.clear();
}

void Nic::wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void Nic::watch(Endpoint& endpoint, unsigned events) {
    const bool is_new = endpoint.id_ == 0;
    if (is_new) {
        endpoint.id_ = ++last_id_;
        endpoints_[endpoint.id_] = &endpoint;
    } else if (endpoint.watched_ == events) {
        return;
    }
    endpoint.watched_ = events;
    epoll_event event{};
    event.events = events;
    event.data.u64 = endpoint.id_;
    ::epoll_ctl(epoll_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, endpoint.fd.get(), &event);
}

deft::UniqueFd Nic::release(Endpoint& endpoint) {
    if (endpoint.id_ != 0) {
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, endpoint.fd.get(), nullptr);
        endpoints_.erase(endpoint.id_);
        endpoint.id_ = 0;
        endpoint.watched_ = 0;
    }
    return std::move(endpoint.fd);
}

void Nic::forget(Endpoint& endpoint) {
    release(endpoint).reset();
}

std::uint64_t Nic::later(Clock::duration wait, std::function<void()> action) {
    const std::uint64_t timer = timers_.at(Clock::now() + wait, std::move(action));
    if (std::this_thread::get_id() != thread_.get_id()) {
        wake();
    }
    return timer;
}

void Nic::keep(std::unique_ptr<Endpoint> endpoint) {
    kept_.push_back(std::move(endpoint));
}

void Nic::discard(Endpoint& endpoint) {
    forget(endpoint);
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const auto& one) { return one.get() == &endpoint; });
    if (found != kept_.end()) {
        discarded_.push_back(std::move(*found));
        kept_.erase(found);
    }
}

std::uint32_t Nic::number(Qp& qp) {
    auto group = std::find_if(groups_.begin(), groups_.end(),
                              [](const auto& one) { return !one->used.all(); });
    if (group == groups_.end()) {
        auto made = std::make_unique<Group>(*this);
        if (made->port() == 0) {
            return 0;
        }
        watch(*made, EPOLLIN);
        group = groups_.insert(groups_.end(), std::move(made));
    }
    unsigned& next = (*group)->next;
    while ((*group)->used[next]) {
        next = (next + 1) % 256;
    }
    (*group)->used.set(next);
    const std::uint32_t made = std::uint32_t{(*group)->port()} << 8 | next;
    next = (next + 1) % 256;  // a number that was given back is not the next to be given out
    qps_[made] = &qp;
    return made;
}

void Nic::remove(const Qp& qp) {
    const std::uint32_t number = qp.qp_base.qp_num;
    qps_.erase(number);
    for (const auto& group : groups_) {
        if (group->port() == number >> 8) {
            group->used.reset(number & 0xff);
        }
    }
}

Qp* Nic::find(std::uint32_t number) const {
    const auto found = qps_.find(number);
    return found == qps_.end() ? nullptr : found->second;
}

std::unique_ptr<Region> Nic::take_back(const Region& region) {
    for (const auto& [number, qp] : qps_) {
        qp->responder.place_held();
    }
    reach_gpu();
    auto removed = memory.remove(region);
    for (const auto& [number, qp] : qps_) {
        qp->requester.region_gone(region);
        qp->responder.region_gone(region);
    }
    return removed;
}

void Nic::reach_gpu() {
    for (const HeldWrite& write : to_gpu_) {
        std::memcpy(write.target, write.bytes.data(), write.bytes.size());
    }
    to_gpu_.clear();
}

void Nic::reach_gpu_late(HeldWrite write) {
    to_gpu_.push_back(std::move(write));
    timers_.cancel(to_gpu_timer_);
    const auto wait = std::chrono::milliseconds(milliseconds(Fault::gpu_late));
    to_gpu_timer_ = later(wait, [this] { reach_gpu(); });
}

// Called when the kernel says that something about interfaces has changed.
void Nic::look_at_ports() {
    for (std::size_t i = 0; i < ports_.size(); ++i) {
        const Netdev now = look_up(ports_[i].settings().netdev);
        const Netdev before = std::exchange(seen_[i], now);
        if (now == before) {
            continue;
        }
        ibv_async_event event{};
        event.element.port_num = static_cast<int>(i) + 1;
        event.event_type = IBV_EVENT_GID_CHANGE;
        if (now.running != before.running) {
            event.event_type = now.running ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
        }
        if (inject(Fault::event_missing)) {
            continue;
        }
        if (inject(Fault::event_late)) {
            later(std::chrono::milliseconds(milliseconds(Fault::event_late)),
                  [this, event] { post_event(event); });
            continue;
        }
        post_event(event);
    }
}

}  // namespace softdev::verbs
