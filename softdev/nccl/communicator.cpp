// SPDX-License-Identifier: Apache-2.0
// State of a communicator, its connections, and the table of all of them.
#include "softdev/nccl/communicator.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <deque>
#include <tuple>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kMagic = 0x4c43434e54464f53ull;
constexpr int kMessagesOfAChannel = 8;  // that NCCL's kernel has at a time

struct Table {
    std::mutex mutex;
    std::map<ncclComm_t, std::shared_ptr<Communicator>> live;
    std::deque<ncclComm> handles;  // never shrinks: a stale handle stays recognisable
};

Table& table() {
    static Table* const all = new Table;  // lives as long as threads may call in
    return *all;
}

}  // namespace

ncclComm_t register_communicator(const std::shared_ptr<Communicator>& communicator) {
    std::lock_guard lock(table().mutex);
    ncclComm_t handle = &table().handles.emplace_back(
        ncclComm{kMagic, communicator->rank, communicator->nranks, communicator->device});
    communicator->handle = handle;
    table().live[handle] = communicator;
    return handle;
}

void forget_communicator(ncclComm_t handle) {
    std::lock_guard lock(table().mutex);
    table().live.erase(handle);
}

void name_device_rank(const Communicator& communicator) {
    std::lock_guard lock(table().mutex);
    for (const auto& [handle, other] : table().live) {
        if (other.get() != &communicator && other->device == communicator.device) {
            return;
        }
    }
    softdevSetDeviceRank(communicator.device, communicator.rank);
}

std::shared_ptr<Communicator> find_communicator(ncclComm_t handle, const char* call) {
    if (handle == nullptr) {
        throw Error(ncclInvalidArgument, format("%s : comm argument is NULL", call));
    }
    const std::string place =
        std::string(call).starts_with("nccl") ? call : std::string("nccl") + call;
    std::string text;
    int device = softdevCurrentDevice();
    {
        std::lock_guard lock(table().mutex);
        const auto found = table().live.find(handle);
        if (found != table().live.end()) {
            return found->second;
        }
        for (const ncclComm& old : table().handles) {
            if (&old == handle) {
                text =
                    format("%s: rank %d of %d: the communicator %p was destroyed or aborted before",
                           place.c_str(), old.rank, old.nranks, static_cast<void*>(handle));
                device = old.device;
            }
        }
    }
    if (text.empty()) {
        text = format("%s: %p is no communicator", place.c_str(), static_cast<void*>(handle));
    }
    softdevReportOn(device, "%s", text.c_str());
    throw Error(ncclInvalidArgument,
                format("%s : comm argument was corrupted or freed (%s)", call, text.c_str()));
}

Resources::~Resources() {
    progress.stop();
    service.stop();
    net.release();
}

Communicator::Communicator(int ranks, int own, Config chosen)
    : rank(own), nranks(ranks), config(std::move(chosen)) {}

Communicator::~Communicator() {
    shut_down(End::kAbort);
}

std::string Communicator::name() const {
    const std::string label = config.comm_name.empty() ? "" : " \"" + config.comm_name + "\"";
    return format("rank %d of %d (communicator%s 0x%llx)", rank, nranks, label.c_str(),
                  static_cast<unsigned long long>(hash));
}

Patience Communicator::patience() const {
    return {Clock::now() + limits.stall, &abort_};
}

Communicator::Health Communicator::health() const {
    if (abort_.load() || revoked_.load()) {
        return Health::kAborted;
    }
    return async_error_.load() == ncclSuccess ? Health::kGood : Health::kFailed;
}

ncclResult_t Communicator::async_result() const {
    const int error = async_error_.load();
    return static_cast<ncclResult_t>(error != ncclSuccess ? error : pending_.load());
}

void Communicator::fail(ncclResult_t code, const std::string& text, bool report) {
    {
        std::lock_guard lock(failing_mutex_);
        if (async_error_.load() == ncclSuccess) {
            const std::string line = name() + ": " + text;
            log_warn("%s", line.c_str());
            if (report) {
                softdevReportOn(device, "nccl: %s", line.c_str());
            }
            // Last: who sees the code asks for the text at once.
            async_error_.store(code);
        }
    }
    ring_all();
}

void Communicator::ring_all() {
    {
        std::lock_guard lock(parts_mutex_);
        if (control_) {
            control_->arrivals().ring();
        }
        if (resources_) {
            resources_->progress.moved().ring();
            resources_->service.finished().ring();
        }
    }
    idle.ring();
}

void Communicator::launched(bool captured) {
    captured_.fetch_add(captured ? 1 : 0);
    ever_captured_.store(captured || ever_captured_.load());
    running_.fetch_add(1);
}

void Communicator::landed(bool captured) {
    running_.fetch_sub(1);
    captured_.fetch_sub(captured ? 1 : 0);
    idle.ring();
}

bool Communicator::begin_replay() {
    // Counted before the look: the end looks at the count after it has raised its flag.
    replaying_.fetch_add(1);
    return health() != Health::kAborted && !leaving_.load();
}

void Communicator::end_replay() {
    replaying_.fetch_sub(1);
    idle.ring();
}

void Communicator::letter(int peer, Letter type, uint64_t key, const std::string& payload) {
    switch (type) {
        case Letter::kGather:
        case Letter::kHandle:
            break;
        case Letter::kCall:
        case Letter::kSend:
        case Letter::kMismatch:
            if (limits.strict) {
                check_->letter(peer, type, payload);
            }
            break;
        case Letter::kQuery:
            control_->send(peer, Letter::kState, key,
                           format("%llu collectives called, last: ",
                                  static_cast<unsigned long long>(check_->calls())) +
                               check_->last_call());
            break;
        case Letter::kState: {
            std::lock_guard lock(state_mutex_);
            if (key == query_) {
                peer_states_[peer] = payload;
            }
            break;
        }
        case Letter::kBye:
            break;
    }
    control_->arrivals().ring();
}

void Communicator::peer_lost(int peer, bool clean) {
    if (leaving_.load() || abort_.load()) {
        return;
    }
    // A rank that said good-bye matters only to operations that still need it: those stop at the
    // network's error or at the deadline. One that died without a word ends the communicator.
    if (!clean) {
        fail(ncclRemoteError,
             format("rank %d went away (its process ended or its host is unreachable)", peer),
             true);
    } else {
        ring_all();
    }
}

std::string Communicator::describe_stall() {
    uint64_t query = 0;
    {
        std::lock_guard lock(state_mutex_);
        peer_states_.clear();
        query = ++query_;
    }
    control_->send_to_all(Letter::kQuery, query, "");
    const auto until = Clock::now() + 2s;
    for (;;) {
        const uint64_t seen = control_->arrivals().seen();
        std::lock_guard lock(state_mutex_);
        size_t expected = 0;
        for (int peer = 0; peer < nranks; ++peer) {
            expected += peer != rank && !control_->lost(peer);
        }
        if (peer_states_.size() >= expected || Clock::now() >= until || abort_.load()) {
            break;
        }
        state_mutex_.unlock();
        control_->arrivals().sleep(seen, 20ms);
        state_mutex_.lock();
    }
    std::string text = "this rank: " + check_->last_call();
    std::lock_guard lock(state_mutex_);
    for (int peer = 0; peer < nranks; ++peer) {
        if (peer != rank) {
            const auto found = peer_states_.find(peer);
            text += format("; rank %d: %s", peer,
                           found != peer_states_.end() ? found->second.c_str()
                           : control_->lost(peer)      ? "has left"
                                                       : "does not answer");
        }
    }
    return text;
}

Connection* Communicator::connection(Pattern pattern, int channel, int peer, bool sender) {
    const auto from = static_cast<uint16_t>(sender ? rank : peer);
    const auto to = static_cast<uint16_t>(sender ? peer : rank);
    std::lock_guard lock(connections_mutex_);
    const auto found =
        connections_.find({{pattern, static_cast<uint8_t>(channel), from, to}, sender});
    return found == connections_.end() ? nullptr : found->second.get();
}

// The channel of a part of a message, equal on both sides. As in NCCL, peers have different first
// channels: their distance with its bits reversed, so that near peers are far apart. Before 2.28
// the part's bits were reversed instead. NCCL counts the distance in hosts, which here is right for
// one GPU a host.
int Communicator::message_channel(int peer, bool sending, int part) const {
    const auto all = std::bit_ceil(static_cast<unsigned>(channels));
    const auto reversed = [all](int number) {
        auto left = static_cast<unsigned>(number);
        unsigned result = 0;
        for (unsigned bit = all / 2; bit != 0; bit /= 2, left /= 2) {
            result += left % 2 != 0 ? bit : 0;
        }
        return static_cast<int>(result);
    };
    const int distance = ((sending ? peer - rank : rank - peer) + nranks) % nranks;
    const int channel =
        nccl_version() >= 22800 ? reversed(distance) + part : distance + reversed(part);
    return channel % static_cast<int>(all);
}

std::shared_ptr<Service::Batch> Communicator::begin_connect(const std::set<Wish>& wishes) {
    std::vector<Connection*> missing;
    {
        std::lock_guard lock(connections_mutex_);
        for (const Wish& wish : wishes) {
            auto& slot = connections_[wish];
            if (!slot) {
                slot = std::make_unique<Connection>(wish.key, wish.sender, top_ranks[wish.key.from],
                                                    resources_->memory);
                slot->device = resources_->devices[wish.key.channel % networks_];
                missing.push_back(slot.get());
            }
        }
        // NCCL's order: peer by peer, the nearest first, what comes from it before what goes to it.
        // The connections are closed in the order in which they are made.
        const auto turn = [this](const Connection* connection) {
            const int distance =
                connection->sender() ? connection->peer() - rank : rank - connection->peer();
            return std::tuple((distance + nranks) % nranks, connection->sender(),
                              connection->key().pattern, connection->key().channel);
        };
        std::sort(missing.begin(), missing.end(),
                  [&](const Connection* a, const Connection* b) { return turn(a) < turn(b); });
        for (Connection* connection : missing) {
            connection->number = next_number_++;
        }
    }
    return missing.empty() ? nullptr
                           : resources_->service.connect(
                                 control_.get(), std::move(missing),
                                 {traffic_of(Pattern::kRing), traffic_of(Pattern::kTree),
                                  traffic_of(Pattern::kP2p)});
}

Traffic Communicator::traffic_of(Pattern pattern) const {
    switch (pattern) {
        case Pattern::kRing:
        case Pattern::kTree:
            return {std::min(kTreePeers, nranks), channels};
        case Pattern::kP2p:
            return {std::min(kMessagesOfAChannel * channels, nranks), p2p_channels};
    }
    return {};
}

void Communicator::finish_connect(std::shared_ptr<Service::Batch> batch) {
    if (batch == nullptr) {
        return;
    }
    Gate& gate = resources_->service.finished();
    const auto begun = Clock::now();
    const auto until = begun + limits.stall;
    const auto soon =
        begun + 1s;  // the connections to a rank that has left may still be finished by it
    const auto waits_for_lost = [&] {
        for (const Connection* connection : batch->wanted) {
            if (control_->lost(connection->peer())) {
                return true;
            }
        }
        return false;
    };
    std::string why;
    ncclResult_t code = ncclInternalError;
    for (;;) {
        const uint64_t seen = gate.seen();
        if (batch->finished.load()) {
            break;
        }
        if (why.empty() && health() == Health::kAborted) {
            why = "aborted";
        } else if (why.empty() && health() == Health::kFailed) {
            why = "the communicator has failed";
            code = static_cast<ncclResult_t>(async_error_.load());
        } else if (why.empty() &&
                   (Clock::now() >= until || (Clock::now() >= soon && waits_for_lost()))) {
            why = "late";
            code = ncclRemoteError;
        }
        if (!why.empty()) {
            resources_->service.cancel(*batch);
        }
        gate.sleep(seen, 50ms);
    }
    if (batch->result == 0) {
        for (Connection* connection : batch->wanted) {
            resources_->progress.add(
                connection, [weak = weak_from_this()](const Connection& c, int result) {
                    if (const auto self = weak.lock()) {
                        self->fail(
                            ncclRemoteError,
                            format("the network plugin failed with %d on the connection %s rank %d",
                                   result, c.sender() ? "to" : "from", c.peer()),
                            true);
                    }
                });
        }
        return;
    }
    if (why == "late") {
        why = format("connections not made within %.1f s: %s; %s",
                     std::chrono::duration<double>(Clock::now() - begun).count(),
                     batch->waiting_for().c_str(), describe_stall().c_str());
        fail(code, why, true);
    } else if (why.empty()) {
        why = batch->error;
        code = ncclSystemError;
        fail(code, why, true);
    }
    throw Error(code, name() + ": " + why);
}

}  // namespace softdev::nccl
