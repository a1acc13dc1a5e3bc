// SPDX-License-Identifier: Apache-2.0
// An opened RDMA device, and what happens to its ports and queue pairs.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "deft/abi/verbs.h"
#include "plugin/core/path.h"
#include "plugin/verbs/library.h"

namespace deft::net {

// Any thread. Lives as long as anything that was made of it.
class VerbsContext {
public:
    // NULL and the cause: there is no such device, or this process may not open it.
    static std::shared_ptr<VerbsContext> open(const VerbsLibrary& library,
                                              const std::string& device, std::string& problem);
    ~VerbsContext();
    VerbsContext(const VerbsContext&) = delete;
    VerbsContext& operator=(const VerbsContext&) = delete;

    const VerbsLibrary& library() const { return library_; }
    deft_verbs_context_t* get() const { return context_; }
    const std::string& device() const { return device_; }
    // False and the cause. Asks the driver: not for the data path.
    bool query_port(int number, deft_verbs_port_attr_t& attributes, std::string& problem) const;

    // Takes what events there are; a system call, does not wait.
    void look();
    // The same, but at most once a millisecond.
    void look_soon(Nanos now);
    // Of a port, by the events that look_soon() has taken; `down` from the beginning if it was not
    // active when it was first asked for. Waits for nobody, but the first time.
    Carrier carrier(int port);
    // An event has said that the device is dead. For good, here.
    bool fatal() const { return fatal_.load(std::memory_order_relaxed); }
    // From now on `lost` is set when an event says that the queue pair is; until forget().
    void watch(const deft_verbs_qp_t* qp, std::atomic<bool>& lost);
    void forget(const deft_verbs_qp_t* qp);

private:
    VerbsContext(const VerbsLibrary& library, deft_verbs_context_t* context, std::string device);
    void take(const deft_verbs_async_event_t& event) DEFT_REQUIRES(mutex_);
    struct Port {  // written under mutex_
        std::atomic<bool> known{false};
        std::atomic<bool> down{false};
        std::atomic<std::uint64_t> lost{0};
        std::atomic<std::uint64_t> gained{0};
    };
    Port& port(int number) { return ports_[static_cast<std::size_t>(number) % kPorts]; }
    void get_to_know(int number) DEFT_REQUIRES(mutex_);
    static void change(Port& port, bool down);

    static constexpr std::size_t kPorts = 256;  // a port's number has eight bits

    const VerbsLibrary& library_;
    deft_verbs_context_t* const context_;
    const std::string device_;
    std::atomic<Nanos> looked_{0};
    std::atomic<bool> fatal_{false};
    Mutex mutex_;
    std::array<Port, kPorts> ports_;
    std::map<const deft_verbs_qp_t*, std::atomic<bool>*> watched_ DEFT_GUARDED_BY(mutex_);
};

}  // namespace deft::net
