// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/held_call.h"

#include <pthread.h>

#include <new>

#include "shim/hooks/group.h"
#include "shim/nccl/series.h"

namespace deft::held {
namespace {

struct Held {
    Call call;
    deft_nccl_comm_t comm = nullptr;
    deft_cuda_stream_t stream = nullptr;
    const NcclTable* table = nullptr;
    Communicator* entry = nullptr;  // pinned
};

// A coalescing manager has a call for each parameter of a layer, say.
constexpr std::size_t kMost = 512;
// The further calls of a group: the first is kept without memory of its own, as it is most often
// the only one.
struct More {
    Held calls[kMost];
};

struct Group {
    Held first;
    std::size_t kept = 0;    // calls, with the first
    bool other = false;      // the group has another call, or these have been forwarded
    More* memory = nullptr;  // for the next group too; gone with the thread
};

// Without a destructor: that a lone call is kept must not depend on memory, or the ranks would do
// different things.
thread_local constinit Group t_group;

void free_with_thread(More* memory) noexcept {
    struct Key {
        pthread_key_t key{};
        const bool made = ::pthread_key_create(&key, [](void* own) {
                              t_group.memory = nullptr;
                              delete static_cast<More*>(own);
                          }) == 0;
    };
    static const Key key;
    if (key.made) {
        (void)::pthread_setspecific(key.key, memory);
    }
}

// Of a call that every rank makes alike. An operation of the job's own may be destroyed before the
// group ends; what NCCL refuses at the call is left to it.
bool fit(const Call& call) {
    return may_be_numbered(call) && call.op < DEFT_NCCL_NUM_OPS && call.send != nullptr &&
           call.receive != nullptr;
}

// Where the next is kept. Null: there is no room, or these are not kept together. Where there is no
// memory for it, this rank makes its calls otherwise than the others; the job would end soon of the
// same want.
Held* room_for(const Call& call) noexcept {
    if (t_group.kept == 0) {
        return &t_group.first;
    }
    if (!moves_shards(call.function) || !moves_shards(t_group.first.call.function) ||
        t_group.kept == kMost + 1) {
        return nullptr;
    }
    if (t_group.memory == nullptr) {
        t_group.memory = new (std::nothrow) More;
        if (t_group.memory == nullptr) {
            return nullptr;
        }
        free_with_thread(t_group.memory);
    }
    return &t_group.memory->calls[t_group.kept - 1];
}

const Held& at(std::size_t i) {
    return i == 0 ? t_group.first : t_group.memory->calls[i - 1];
}

// Nothing is kept any more, though at() has it until the next is.
void forget() {
    t_group.kept = 0;
}

// Another thread may have ended the communicator.
bool ended(const Held& held) {
    return held.entry->handle.load(std::memory_order_acquire) != held.comm;
}

int make_now(const Held& held) noexcept {
    const bool over = ended(held);
    CollectiveHook hook(held.call.function, CommunicatorPin(held.entry), held.comm, held.table);
    return over ? DEFT_NCCL_INVALID_ARGUMENT : hook.make(held.call, held.stream);
}

// Several: those that no plan takes go in one group, as the job has made them.
int make_all(std::size_t kept) noexcept {
    int result = DEFT_NCCL_SUCCESS;
    // "In progress" is less than an error.
    const auto note = [&result](int own) {
        const bool good = result == DEFT_NCCL_SUCCESS || result == DEFT_NCCL_IN_PROGRESS;
        result = good && own != DEFT_NCCL_SUCCESS ? own : result;
    };
    const NcclTable& table = *t_group.first.table;
    bool forwarded[kMost + 1];
    bool any = false;
    for (std::size_t i = 0; i < kept; ++i) {
        const Held& held = at(i);
        const bool over = ended(held);
        CollectiveHook hook(held.call.function, CommunicatorPin(held.entry), held.comm, held.table);
        int own = over ? DEFT_NCCL_INVALID_ARGUMENT : DEFT_NCCL_SUCCESS;
        forwarded[i] = !over && !hook.make_grouped(held.call, held.stream, own);
        any = any || forwarded[i];
        note(own);
    }
    if (any) {
        note(table.GroupStart());
        for (std::size_t i = 0; i < kept; ++i) {
            if (forwarded[i]) {
                note(forward_to(table, at(i).call, at(i).comm, at(i).stream));
            }
        }
        note(table.GroupEnd());
    }
    observe_group_end(result);
    return result;
}

}  // namespace

bool keep(CollectiveHook& hook, const Call& call, deft_nccl_comm_t comm,
          deft_cuda_stream_t stream) noexcept {
    if (!hook.watched() || t_group.other || !hook.communicator() ||
        hook.communicator()->director.load(std::memory_order_acquire) == nullptr ||
        hook.table() != group::library() || !fit(call)) {
        return false;
    }
    Held* const held = room_for(call);
    if (held == nullptr) {
        return false;
    }
    held->call = call;
    held->comm = comm;
    held->stream = stream;
    held->table = hook.table();
    held->entry = hook.communicator().release();
    ++t_group.kept;
    return true;
}

void forward() noexcept {
    if (group::depth() == 0) {
        return;
    }
    t_group.other = true;
    const std::size_t kept = t_group.kept;
    forget();  // the hooks of these calls come here too
    for (std::size_t i = 0; i < kept; ++i) {
        make_now(at(i));  // NCCL remembers an error until the group ends
    }
}

int make(int result) noexcept {
    t_group.other = false;
    const std::size_t kept = t_group.kept;
    forget();
    if (kept == 0) {
        return result;
    }
    if (result != DEFT_NCCL_SUCCESS && result != DEFT_NCCL_IN_PROGRESS) {
        for (std::size_t i = 0; i < kept; ++i) {
            const CommunicatorPin dropped(at(i).entry);
        }
        return result;
    }
    const int own = kept == 1 ? make_now(at(0)) : make_all(kept);
    return own != DEFT_NCCL_SUCCESS ? own : result;
}

}  // namespace deft::held
