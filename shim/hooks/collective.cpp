// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/collective.h"

#include <pthread.h>

#include <utility>
#include <vector>

#include "base/hot_path.h"
#include "base/presence.h"
#include "shim/control/director.h"
#include "shim/hooks/communicator.h"
#include "shim/hooks/group.h"
#include "shim/hooks/held_call.h"
#include "shim/nccl/gradient_call.h"
#include "shim/nccl/series.h"
#include "shim/nccl/sum_mark.h"

namespace deft {
namespace {

struct Grouped {
    CallRecord record;
    cuda::EventPool* pool;
    deft_cuda_stream_t stream;
    CommunicatorPin communicator;  // of one that counts; empty: it does not
    bool numbered;                 // it is, and has no number yet
    bool small;                    // it may carry one that no plan takes
    bool tuned;                    // it may be
    tuning::Key key;               // of one that may
    bool observed;
};

// Calls of the calling thread's open group. The vector is kept for the next group, so that a steady
// job allocates nothing, and goes with the thread.
thread_local std::vector<Grouped>* t_grouped = nullptr;
std::atomic<std::uint64_t> g_groups{0};

// By a key of the C library's, as a thread that ends is told to a guest that has no destructors of
// its own. One that makes another group while it ends comes here again.
void free_with_thread(std::vector<Grouped>* calls) noexcept {
    struct Key {
        pthread_key_t key{};
        const bool made = ::pthread_key_create(&key, [](void* grouped) {
                              t_grouped = nullptr;
                              delete static_cast<std::vector<Grouped>*>(grouped);
                          }) == 0;
    };
    static const Key key;
    if (key.made) {
        (void)::pthread_setspecific(key.key, calls);  // else it stays when the thread has ended
    }
}

deft_cuda_stream_t stream_of(const CallRecord& record) {
    return reinterpret_cast<deft_cuda_stream_t>(record.stream);
}

// Counted on every rank alike, whatever else happens to the call.
std::uint64_t next_ordinal(Communicator& communicator, Function function) {
    const auto series = static_cast<std::size_t>(series_of(function));
    return communicator.numbered_calls[series].fetch_add(1, std::memory_order_relaxed);
}

tuning::Counted next_tuned(Communicator& communicator, const tuning::Key& key, tuning::Made made) {
    const std::uint64_t history =
        tuning::history_with(communicator.tuned_history.load(std::memory_order_relaxed), key, made);
    communicator.tuned_history.store(history, std::memory_order_relaxed);
    return {communicator.tuned_calls.fetch_add(1, std::memory_order_relaxed), history};
}

director::Director* director_of(const CommunicatorPin& communicator) {
    return communicator ? communicator->director.load(std::memory_order_acquire) : nullptr;
}

void note_small(const CommunicatorPin& communicator) {
    if (director::Director* const director = director_of(communicator)) {
        director->note_small();
    }
}

// One that may be tuned.
int count_tuned_grouped(const CommunicatorPin& communicator, const tuning::Key& key,
                        CallRecord& record) {
    const tuning::Counted counted = next_tuned(*communicator.get(), key, tuning::Made::Grouped);
    record.tuned = counted.ordinal;
    record.offer = {};  // NCCL asks when the group has ended, if at all
    director::Director* const director = director_of(communicator);
    return director == nullptr || director->count_tuned(counted) ? DEFT_NCCL_SUCCESS
                                                                 : DEFT_NCCL_SYSTEM_ERROR;
}

int count_grouped(Grouped& call) {
    int result = DEFT_NCCL_SUCCESS;
    if (call.small) {
        note_small(call.communicator);
    }
    director::Director* const director = director_of(call.communicator);
    if (call.tuned) {
        result = count_tuned_grouped(call.communicator, call.key, call.record);
    }
    if (call.numbered) {
        call.record.ordinal = next_ordinal(*call.communicator.get(), call.record.function);
        if (director != nullptr) {
            Call grouped;
            grouped.function = call.record.function;
            director->all_reduce(grouped, call.record.ordinal, true, call.stream, result);
        }
    }
    return result;
}

// As far as every rank knows the same of it.
CallRecord reduction(const Call& call) {
    CallRecord record;
    record.function = call.function;
    record.count = call.count;
    record.type = static_cast<std::uint8_t>(call.type);
    record.op = call.op;
    record.in_place = call.send == call.receive;
    return record;
}

}  // namespace

DEFT_NO_ARRAYS bool may_be_numbered(const Call& call) noexcept {
    return is_numbered(reduction(call));
}

int forward_to(const NcclTable& table, const Call& call, deft_nccl_comm_t comm,
               deft_cuda_stream_t stream) noexcept {
    auto* const receive = const_cast<void*>(call.receive);
    switch (call.function) {
        case Function::ReduceScatter:
            return table.ReduceScatter(call.send, receive, call.count, call.type, call.op, comm,
                                       stream);
        case Function::AllGather:
            return table.AllGather(call.send, receive, call.count, call.type, comm, stream);
        default:
            return table.AllReduce(call.send, receive, call.count, call.type, call.op, comm,
                                   stream);
    }
}

DEFT_NO_ARRAYS int CollectiveHook::make(const Call& made, deft_cuda_stream_t stream) noexcept {
    Call call = made;
    if (call.function == Function::AllReduce) {
        call.mark = take_mark(call);
    }
    begin(call, stream);
    int result = DEFT_NCCL_SUCCESS;
    if (!refused_ && carry_out(call, stream, result)) {
        record_.tuned = CallRecord::kNoOrdinal;  // NCCL was not asked for it
    } else {
        result = forward([&] { return forward_to(*table(), call, comm_, stream); });
        tell_forwarded(stream);
    }
    end(result);
    return result;
}

bool CollectiveHook::make_grouped(const Call& made, deft_cuda_stream_t stream,
                                  int& result) noexcept {
    grouped_ = true;
    begin(made, stream);
    number();
    if (std::exchange(tuned_, false)) {
        result = count_tuned_grouped(communicator(), key_, record_);
    }
    const bool planned = result != DEFT_NCCL_SUCCESS || carry_out(made, stream, result);
    if (planned) {
        record_.tuned = CallRecord::kNoOrdinal;  // NCCL was not asked for it
    }
    keep_for_group_end(background_ != nullptr);
    return planned;
}

DEFT_NO_ARRAYS void CollectiveHook::begin(const Call& call, deft_cuda_stream_t stream) noexcept {
    if (!watched()) {
        return;
    }
    BackgroundThread::count(call.function);
    const bool grouped = grouped_ || group::depth() > 0;
    if (group::depth() > 0) {
        held::forward();
    }
    numbered_ = communicator() && may_be_numbered(call);
    small_ = communicator() && call.function == Function::AllReduce &&
             may_be_small_gradient(reduction(call));
    if (small_ && !grouped) {
        note_small(communicator());
    }
    tuned_ = communicator() && tuning::may_tune(call.function) &&
             Presence::process().tunes.load(std::memory_order_relaxed);
    if (tuned_) {
        key_ = tuning::key_of(call.function, call.count, call.type, call.op);
    }
    if (tuned_ && !grouped) {
        tune(stream);
    }
    record_.stream = reinterpret_cast<std::uintptr_t>(stream);
    record_.function = call.function;
    if (!grouped) {
        number();
    }
    BackgroundThread* const background = BackgroundThread::running();
    if (background == nullptr) {
        return;
    }
    const Communicator* const comm = communicator::known(*this, comm_);
    if (comm == nullptr) {
        return;
    }
    record_.issued_ns = cuda::host_now();  // before the event, so never later than the start
    record_.device = comm->device.load(std::memory_order_relaxed);
    if (!record_start(*background, stream)) {
        return;
    }
    record_.comm_serial = comm->serial.load(std::memory_order_relaxed);
    record_.comm_hash = comm->hash.load(std::memory_order_relaxed);
    record_.nranks = comm->nranks.load(std::memory_order_relaxed);
    record_.count = call.count;
    record_.type = static_cast<std::uint8_t>(call.type);
    record_.op = call.op;
    record_.root = call.root;
    record_.mark = call.mark;
    record_.in_place = is_in_place(call, comm->rank.load(std::memory_order_relaxed));
    record_.buffer = reinterpret_cast<std::uintptr_t>(call.receive);
    background_ = background;
}

// Once a call.
void CollectiveHook::number() noexcept {
    if (numbered_) {
        numbered_ = false;
        record_.ordinal = next_ordinal(*communicator().get(), record_.function);
    }
}

// Once a call, because each look asks the driver.
void CollectiveHook::look_at(deft_cuda_stream_t stream) noexcept {
    const cuda::Driver* const driver = cuda::Driver::found();
    if (driver != nullptr && !looked_at_) {
        looked_at_ = true;
        recordable_ = cuda::recordable(*driver, stream, captured_);
    }
}

// What the ranks have agreed on for this call. A graph would keep it for good, so a call that is
// captured is left to NCCL.
void CollectiveHook::tune(deft_cuda_stream_t stream) noexcept {
    director::Director* const director = director_of(communicator());
    const bool tunes = director != nullptr && director->tunes();
    if (tunes) {
        look_at(stream);
    }
    const tuning::Counted counted = next_tuned(
        *communicator().get(), key_, captured_ ? tuning::Made::Captured : tuning::Made::Alone);
    record_.tuned = counted.ordinal;
    if (!tunes) {
        return;
    }
    refused_ = !director->tune(key_, counted, pick_);
    if (captured_) {
        pick_ = {};
    }
    record_.order = pick_.order;
    record_.entry = pick_.entry;
    record_.sample = pick_.sample;
}

// False: the call is captured, so that it has no time of its own.
bool CollectiveHook::record_start(BackgroundThread& background,
                                  deft_cuda_stream_t stream) noexcept {
    const cuda::Driver* const driver = cuda::Driver::found();
    if (driver == nullptr || record_.device < 0) {
        return true;
    }
    look_at(stream);
    if (captured_) {
        BackgroundThread::count_captured();
        return false;
    }
    if (recordable_) {
        record_.events = record_.sample >= 0 ? background.trial_pair(record_.device, pool_)
                                             : background.sample(record_.device, pool_);
    }
    if (record_.events >= 0 && !pool_->record_start(record_.events, stream)) {
        pool_->give_back(record_.events);
        record_.events = -1;
    }
    return true;
}

bool CollectiveHook::carry_out(const Call& call, deft_cuda_stream_t stream, int& result) noexcept {
    if (record_.ordinal == CallRecord::kNoOrdinal) {
        return false;  // in a group: count_group()
    }
    director::Director* const director = director_of(communicator());
    return director != nullptr &&
           director->all_reduce(call, record_.ordinal, false, stream, result);
}

void CollectiveHook::tell_forwarded(deft_cuda_stream_t stream) noexcept {
    if (record_.ordinal != CallRecord::kNoOrdinal) {
        if (director::Director* const director = director_of(communicator())) {
            director->forwarded(stream);
        }
    }
}

void CollectiveHook::end(int result) noexcept {
    if (background_ == nullptr && !numbered_ && !small_ && !tuned_) {
        return;
    }
    const bool launched = result == DEFT_NCCL_SUCCESS;
    if (record_.events >= 0 && !launched) {
        // In progress: another thread will enqueue it, at a time that cannot be known here.
        pool_->give_back(record_.events);
        record_.events = -1;
    }
    const bool observed = background_ != nullptr && (launched || result == DEFT_NCCL_IN_PROGRESS);
    if (group::depth() > 0) {
        keep_for_group_end(observed);
        return;
    }
    if (!observed) {
        return;
    }
    if (record_.events >= 0 && !pool_->record_end(record_.events, stream_of(record_))) {
        pool_->give_back(record_.events);
        record_.events = -1;
    }
    background_->submit(record_, pool_);
}

void CollectiveHook::keep_for_group_end(bool observed) noexcept {
    const bool counts = numbered_ || small_ || tuned_ || record_.ordinal != CallRecord::kNoOrdinal;
    if (!observed && !counts) {
        return;
    }
    Grouped call{record_, pool_, stream_of(record_), {}, numbered_, small_, tuned_, key_, observed};
    if (counts) {
        call.communicator = std::move(communicator());
    }
    try {
        if (t_grouped == nullptr) {
            t_grouped = new std::vector<Grouped>();
            free_with_thread(t_grouped);
        }
        t_grouped->push_back(std::move(call));
    } catch (...) {
        if (call.record.events >= 0) {
            pool_->give_back(call.record.events);
        }
        count_grouped(call);  // a call that is missed would make this rank another than all
    }
}

int count_group() noexcept {
    int result = DEFT_NCCL_SUCCESS;
    if (t_grouped != nullptr) {
        for (Grouped& call : *t_grouped) {
            const int own = count_grouped(call);
            result = result != DEFT_NCCL_SUCCESS ? result : own;
        }
    }
    return result;
}

void observe_group_end(int result) noexcept {
    if (t_grouped == nullptr || t_grouped->empty()) {
        return;
    }
    const bool launched = result == DEFT_NCCL_SUCCESS;
    const bool made = launched || result == DEFT_NCCL_IN_PROGRESS;
    BackgroundThread* const background = BackgroundThread::running();
    std::size_t observed = 0;
    bool told = false;  // what a director has heard of as grouped is learned as that
    for (const Grouped& call : *t_grouped) {
        observed += call.observed ? 1 : 0;
        if (call.record.ordinal != CallRecord::kNoOrdinal &&
            director_of(call.communicator) != nullptr) {
            told = true;
        }
    }
    const std::uint64_t number =
        observed > 1 || told ? g_groups.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
    for (Grouped& call : *t_grouped) {
        call.record.group = number;
        if (call.record.events >= 0 &&
            (!launched || !call.pool->record_end(call.record.events, call.stream))) {
            call.pool->give_back(call.record.events);
            call.record.events = -1;
        }
        director::Director* const director = director_of(call.communicator);
        if (made && director != nullptr && call.record.ordinal != CallRecord::kNoOrdinal) {
            director->forwarded(call.stream);
        }
        if (made && call.observed && background != nullptr) {
            background->submit(call.record, call.pool);
        }
    }
    t_grouped->clear();
}

}  // namespace deft
