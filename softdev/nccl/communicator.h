// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <nccl.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "softdev/nccl/bootstrap.h"
#include "softdev/nccl/call_check.h"
#include "softdev/nccl/config.h"
#include "softdev/nccl/control.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/net_attributes.h"
#include "softdev/nccl/progress.h"
#include "softdev/nccl/reduce.h"
#include "softdev/nccl/service.h"
#include "softdev/net/plugin_loader.h"
#include "softdev/net/tuner_loader.h"

// What an ncclComm_t points to. Never freed, so that a stale handle is recognised; the communicator
// behind it is found by look-up.
struct ncclComm {
    uint64_t magic;
    int rank;
    int nranks;
    int device;
};

namespace softdev::nccl {

// Network, service and progress thread: of one communicator, or shared with children split with
// splitShare. The last user ends it: threads joined, then finalize, then perhaps dlclose.
struct Resources {
    net::CommNet net;
    std::vector<int> devices;  // of the network: the channels take turns on them
    int mbits = 0;             // a second, of all these together
    MemoryRules memory;
    NetAttributes attributes;
    Service service;
    Progress progress;
    ~Resources();
};

class Communicator : public std::enable_shared_from_this<Communicator> {
public:
    Communicator(int nranks, int rank, Config config);
    ~Communicator();

    // ---- identity, constant after init --------------------------------------------------------
    ncclComm_t handle = nullptr;
    int rank;  // -1 for a child of a split until the others said who is in it
    int nranks;
    Config config;
    const Limits limits = Limits::from_environment();
    int device = -1;
    CUcontext context = nullptr;
    uint64_t hash = 0;
    net::CommTuner tuner;  // empty: none is there
    int channels = 1;      // ring and tree; two for each network device unless told otherwise
    int p2p_channels = 1;  // connections to each peer for messages
    int message_channel(int peer, bool sending, int part) const;
    std::vector<int> top_ranks;  // of each rank, in the communicator all this was split from
    std::string name() const;    // "rank 1 of 4 (communicator 0x...)" for reports

    // ---- life cycle (communicator_init.cpp, communicator_end.cpp) -------------------------------
    void
    use_current_device();  // calling thread's context; retains the primary one if there is none
    void init(const std::vector<ncclUniqueId>& ids);  // meets the other ranks; throws Error
    // Collective over the ranks `who` of this communicator: makes the child of this color, ordered
    // by (order, rank); child is NULL for NCCL_SPLIT_NOCOLOR. Throws Error.
    struct Derivation {
        std::vector<int> who;
        bool shrink = false;
        uint64_t number = 0;  // next_derivation() when the call was made
        int color = 0;
        int order = 0;
        bool share = false;  // network and threads of the parent
    };
    void derive(const Derivation& wanted, const std::shared_ptr<Communicator>& child);
    uint64_t next_derivation(bool shrink) { return (shrink ? shrinks_ : splits_)++; }

    // Collective over this communicator: the id that one of its ranks gives, for a larger one.
    ncclUniqueId share_id(const ncclUniqueId* own, uint64_t number);
    uint64_t next_growth() { return grows_++; }

    void finalize();  // waits until everything launched has run and is sent
    enum class End { kDestroy, kAbort };
    void shut_down(End how);  // joins everything; the object stays usable for look-ups only
    void abort();             // releases every wait; reclaim() or shut_down(kAbort) follows
    // shut_down(kAbort), and waits until the device has done all that it has been given, other
    // communicators' operations too: NCCL's abort frees memory, which CUDA does when it is idle.
    void reclaim();
    void revoke();
    // Collective: waits until the device is idle and all ranks have come. No call may come until
    // resume(). The step buffers stay where they are; buffer_bytes() says what NCCL would give up.
    void suspend();
    void resume();  // collective
    bool suspended() const { return suspended_.load(); }
    bool shares_network() const { return resources_ != nullptr && resources_.use_count() > 1; }
    size_t buffer_bytes();
    bool ended() const { return ended_.load(); }

    // ---- state
    // ------------------------------------------------------------------------------------
    enum class Health { kGood, kAborted, kFailed };
    Health health() const;
    void fail(ncclResult_t code, const std::string& text, bool report);
    ncclResult_t async_result() const;  // ncclInProgress while a nonblocking call runs
    void set_in_progress() { pending_.store(ncclInProgress); }
    void set_result(ncclResult_t result) { pending_.store(result); }
    bool revoked() const { return revoked_.load(); }
    bool finalized() const { return finalized_.load(); }
    std::atomic<bool>& abort_flag() { return abort_; }
    Patience patience() const;

    // ---- data plane
    // --------------------------------------------------------------------------------- Makes what
    // is missing of these and waits for it. Throws Error: aborted, or ranks that do not come.
    struct Wish {
        ConnectionKey key;
        bool sender;
        auto operator<=>(const Wish&) const = default;
    };
    std::shared_ptr<Service::Batch> begin_connect(const std::set<Wish>& wishes);
    void finish_connect(std::shared_ptr<Service::Batch> batch);
    Connection* connection(Pattern pattern, int channel, int peer, bool sender);

    Resources& resources() { return *resources_; }
    CallCheck& check() { return *check_; }
    Control& control() { return *control_; }
    bool has_network() const { return resources_ != nullptr; }
    std::string describe_stall();  // asks all ranks how far they are

    // Operations put on streams, or captured into graphs, and not over.
    void launched(bool captured);
    void landed(bool captured);
    bool ever_captured() const { return ever_captured_.load(); }
    // Around each run of a captured operation, which no call announces: the end waits for those
    // that have begun. False once the communicator ends or is aborted: its parts may be gone.
    bool begin_replay();
    void end_replay();

    std::mutex launch_mutex;  // one launch at a time
    std::mutex run_mutex;     // one operation at a time, also of graphs on other streams
    uint64_t collective_number = 0;
    std::map<std::pair<int, bool>, uint64_t> message_numbers;  // by peer, sending
    CUevent last_event = nullptr;                              // after the last launch
    CUstream last_stream = nullptr;
    bool launched_before = false;

    // User reductions of this communicator.
    std::mutex operations_mutex;
    std::map<int, Reduction> operations;
    int next_operation = ncclNumOps;

    // Calls of other threads that are inside the library with this communicator.
    std::atomic<int> users{0};
    Gate idle;  // rung when users or running operations go down

private:
    void check_shared_network(const Communicator& child) const;
    void meet(UniqueFd listener, const std::vector<Address>& addresses, uint64_t magic);
    void exchange_peers();
    void open_network(std::shared_ptr<Resources> shared);
    void open_tuner();
    void letter(int peer, Letter type, uint64_t key, const std::string& payload);
    void peer_lost(int peer, bool clean);
    void close_connections();
    Traffic traffic_of(Pattern pattern) const;
    void ring_all();
    void wait_idle(bool operations_only);

    // Guards the two pointers where ring_all() reads them: any thread calls it (the control thread
    // that sees a peer go, an abort), while the initialisation makes them and the end takes them.
    std::mutex parts_mutex_;
    std::unique_ptr<Control> control_;
    std::unique_ptr<CallCheck> check_;
    std::shared_ptr<Resources> resources_;
    int networks_ = 1;  // of resources_->devices those that every rank has a match for
    std::mutex connections_mutex_;
    std::map<Wish, std::unique_ptr<Connection>> connections_;
    uint64_t next_number_ = 0;  // of a connection

    std::atomic<bool> abort_{false};
    std::atomic<bool> revoked_{false};
    std::atomic<bool> finalized_{false};
    std::atomic<bool> suspended_{false};
    std::atomic<uint64_t> suspensions_{0};
    std::atomic<bool> ended_{false};
    std::atomic<bool> leaving_{false};  // destroy has begun: lost peers are no news
    std::mutex failing_mutex_;  // held by the one failure that sets the text and then the code
    std::atomic<int> async_error_{ncclSuccess};
    std::atomic<int> pending_{ncclSuccess};
    std::atomic<int> running_{0};
    std::atomic<int> captured_{0};    // those of running_ that graphs hold
    std::atomic<int> replaying_{0};   // those of captured_ that a graph runs just now
    bool graphs_waited_for_ = false;  // guarded by shut_down_mutex_, or one finalize at a time
    std::atomic<bool> ever_captured_{false};
    std::atomic<uint64_t> splits_{0};
    std::atomic<uint64_t> shrinks_{0};
    std::atomic<uint64_t> grows_{0};
    std::mutex state_mutex_;
    std::map<int, std::string> peer_states_;
    uint64_t query_ = 0;
    std::mutex shut_down_mutex_;
};

// All communicators of the process by handle.
ncclComm_t register_communicator(const std::shared_ptr<Communicator>& communicator);
void forget_communicator(ncclComm_t handle);
// Reports of the software device about this communicator's device name its rank, unless another
// communicator lives on that device: the first one a job makes spans all its ranks.
void name_device_rank(const Communicator& communicator);
// Throws Error(ncclInvalidArgument) for NULL, for a freed communicator (reported) and for anything
// else.
std::shared_ptr<Communicator> find_communicator(ncclComm_t handle, const char* call);

}  // namespace softdev::nccl
