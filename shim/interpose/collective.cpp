// SPDX-License-Identifier: Apache-2.0
#include "shim/interpose/collective.h"

#include <vector>

#include "shim/director/director.h"
#include "shim/interpose/communicator.h"
#include "shim/interpose/group.h"

namespace deft {
namespace {

struct Grouped {
    CallRecord record;
    cuda::EventPool* pool;
    deft_cuda_stream_t stream;
};

// Calls of the calling thread's open group. The vector is kept for the next group.
thread_local std::vector<Grouped>* t_grouped = nullptr;
std::atomic<std::uint64_t> g_groups{0};

deft_cuda_stream_t stream_of(const CallRecord& record) {
    return reinterpret_cast<deft_cuda_stream_t>(record.stream);
}

// An all-reduce that carries_gradient() may take for one, by what every rank knows of it.
bool may_carry_gradient(const Call& call) {
    CallRecord record;
    record.function = call.function;
    record.count = call.count;
    record.type = static_cast<std::uint8_t>(call.type);
    record.op = call.op;
    return call.function == Function::AllReduce && carries_gradient(record);
}

// In place by NCCL's rules: a reduce-scatter into its own shard, an all-gather from it.
bool in_place(const Call& call, int rank) {
    const auto at = [&call, rank](const void* buffer) {
        return static_cast<const char*>(buffer) +
               static_cast<std::size_t>(rank) * call.count * element_size(call.type);
    };
    if (rank >= 0 && call.function == Function::ReduceScatter && call.send != nullptr) {
        return call.receive == at(call.send);
    }
    if (rank >= 0 && call.function == Function::AllGather && call.receive != nullptr) {
        return call.send == at(call.receive);
    }
    return call.send == call.receive;
}

}  // namespace

void CollectiveHook::begin(const Call& call, deft_cuda_stream_t stream) noexcept {
    if (!watched()) {
        return;
    }
    Observer::count(call.function);
    // Counted on every rank alike, whatever else happens to the call.
    if (communicator() && may_carry_gradient(call)) {
        record_.ordinal = communicator()->gradient_calls.fetch_add(1, std::memory_order_relaxed);
    }
    Observer* const observer = Observer::running();
    if (observer == nullptr) {
        return;
    }
    const Communicator* const comm = communicator::known(*this, comm_);
    if (comm == nullptr) {
        return;
    }
    record_.issued_ns = cuda::host_now();  // before the event, so never later than the start
    record_.device = comm->device.load(std::memory_order_relaxed);
    if (const cuda::Driver* driver = cuda::Driver::found();
        driver != nullptr && record_.device >= 0) {
        bool captured = false;
        const bool recordable = cuda::recordable(*driver, stream, captured);
        if (captured) {
            Observer::count_captured();
            return;
        }
        if (recordable) {
            record_.events = observer->sample(record_.device, pool_);
        }
        if (record_.events >= 0 && !pool_->record_start(record_.events, stream)) {
            pool_->give_back(record_.events);
            record_.events = -1;
        }
    }
    record_.function = call.function;
    record_.comm_serial = comm->serial.load(std::memory_order_relaxed);
    record_.comm_hash = comm->hash.load(std::memory_order_relaxed);
    record_.nranks = comm->nranks.load(std::memory_order_relaxed);
    record_.count = call.count;
    record_.type = static_cast<std::uint8_t>(call.type);
    record_.op = call.op;
    record_.root = call.root;
    record_.in_place = in_place(call, comm->rank.load(std::memory_order_relaxed));
    record_.stream = reinterpret_cast<std::uintptr_t>(stream);
    observer_ = observer;
}

bool CollectiveHook::carry_out(const Call& call, deft_cuda_stream_t stream, int& result) noexcept {
    if (record_.ordinal == CallRecord::kNoOrdinal) {
        return false;
    }
    director::Director* const director = communicator()->director.load(std::memory_order_acquire);
    return director != nullptr &&
           director->all_reduce(call, record_.ordinal, group::depth() > 0, stream, result);
}

void CollectiveHook::end(int result) noexcept {
    if (observer_ == nullptr) {
        return;
    }
    const bool launched = result == DEFT_NCCL_SUCCESS;
    if (record_.events >= 0 && !launched) {
        // In progress: another thread will enqueue it, at a time that cannot be known here.
        pool_->give_back(record_.events);
        record_.events = -1;
    }
    if (!launched && result != DEFT_NCCL_IN_PROGRESS) {
        return;
    }
    if (group::depth() > 0) {
        try {
            if (t_grouped == nullptr) {
                t_grouped = new std::vector<Grouped>();
            }
            t_grouped->push_back({record_, pool_, stream_of(record_)});
        } catch (...) {
        }
        return;
    }
    if (record_.events >= 0 && !pool_->record_end(record_.events, stream_of(record_))) {
        pool_->give_back(record_.events);
        record_.events = -1;
    }
    observer_->submit(record_);
}

void observe_group_end(bool launched) noexcept {
    if (t_grouped == nullptr || t_grouped->empty()) {
        return;
    }
    Observer* const observer = Observer::running();
    const std::uint64_t number =
        t_grouped->size() > 1 ? g_groups.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
    for (Grouped& call : *t_grouped) {
        call.record.group = number;
        if (call.record.events >= 0 &&
            (!launched || !call.pool->record_end(call.record.events, call.stream))) {
            call.pool->give_back(call.record.events);
            call.record.events = -1;
        }
        if (launched && observer != nullptr) {
            observer->submit(call.record);
        }
    }
    t_grouped->clear();
}

}  // namespace deft
