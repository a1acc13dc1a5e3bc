// SPDX-License-Identifier: Apache-2.0
// What moves the bytes of one opened device: a thread, its sockets and its timers.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "softdev/verbs/event_queue.h"
#include "softdev/verbs/memory.h"
#include "softdev/verbs/port.h"
#include "softdev/verbs/timers.h"

namespace softdev::verbs {

struct Qp;
class Nic;

/// A descriptor that the thread waits for. All under Nic::mutex.
class Endpoint {
public:
    Endpoint() = default;
    Endpoint(const Endpoint&) = delete;
    Endpoint& operator=(const Endpoint&) = delete;
    virtual ~Endpoint() = default;
    virtual void ready(unsigned events) = 0;

    deft::UniqueFd fd;

private:
    friend class Nic;
    std::uint64_t id_ = 0;
    unsigned watched_ = 0;
};

class Nic {
public:
    explicit Nic(const DeviceSettings& settings);
    ~Nic();
    Nic(const Nic&) = delete;
    Nic& operator=(const Nic&) = delete;
    /// 0 or errno.
    int start();

    const std::vector<Port>& ports() const { return ports_; }
    const std::uint32_t ece;  ///< DeviceSettings::ece

    /// Does what is to be done now, if nobody else is at it. For who polls in vain: on a machine
    /// with few processors it would keep the device's thread from running.
    void help();

    /// Held by who uses anything below, and by the thread while it works. Never while it waits.
    deft::Mutex mutex;
    MemoryTable memory;
    EventQueue<ibv_async_event> async;
    int objects = 0;  ///< domains, queues, channels that the program has not given back

    void watch(Endpoint& endpoint, unsigned events);
    /// Closes its descriptor too.
    void forget(Endpoint& endpoint);
    /// The descriptor lives on elsewhere.
    deft::UniqueFd release(Endpoint& endpoint);
    std::uint64_t later(Clock::duration wait, std::function<void()> action);
    void cancel(std::uint64_t timer) { timers_.cancel(timer); }
    /// Takes an endpoint that nobody owns, until discard().
    void keep(std::unique_ptr<Endpoint> endpoint);
    /// Ends it when the current event is through.
    void discard(Endpoint& endpoint);

    /// Gives the queue pair a number, by which peers find this process: the listening TCP port and
    /// one of 256. 0: no port could be opened.
    std::uint32_t number(Qp& qp);
    void remove(const Qp& qp);
    Qp* find(std::uint32_t number) const;
    /// Nothing of the region is read or written when this returns.
    std::unique_ptr<Region> take_back(const Region& region);
    /// What the bus has of writes to a GPU's memory (Fault::gpu_late) gets there: now, with a read
    /// through the device; or of this one so much later.
    void reach_gpu();
    void reach_gpu_late(HeldWrite write);
    void post_event(const ibv_async_event& event) { async.push(event); }
    void look_at_ports();
    /// Any thread, without the lock: something was posted to a queue pair and waits (Qp::entry).
    void posted() {
        posts_wait_.store(true, std::memory_order_release);
        wake();
    }

private:
    class Group;
    class PortWatch;

    void run();
    void take_wake_up();
    void handle(std::uint64_t id, unsigned events);
    void wake();
    void take_posts();

    std::vector<Port> ports_;
    std::vector<Netdev> seen_;  ///< of each port
    deft::UniqueFd epoll_;
    deft::UniqueFd wake_;
    std::unordered_map<std::uint64_t, Endpoint*> endpoints_;
    std::uint64_t last_id_ = 0;
    Timers timers_;
    std::vector<HeldWrite> to_gpu_;  ///< in their order
    std::uint64_t to_gpu_timer_ = 0;
    std::vector<std::unique_ptr<Endpoint>> kept_;
    std::vector<std::unique_ptr<Endpoint>> discarded_;
    std::vector<std::unique_ptr<Group>> groups_;
    std::unique_ptr<PortWatch> port_watch_;
    std::unordered_map<std::uint32_t, Qp*> qps_;
    std::atomic<bool> posts_wait_{false};
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace softdev::verbs
