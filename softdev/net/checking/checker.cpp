// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/checking/state.h"
#include "softdev/net/checking/trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "softdev/net/never_destroyed.h"
#include "softdev/net/socket_net.h"

namespace softdev::net::checking {
namespace {

struct Context {
    void* inner;
    uint64_t comm_id;
};

struct State {
    std::mutex mutex;
    std::set<Comm*> comms;
    std::set<Context*> contexts;
    int made[3] = {};        // comms of each kind
    void* shared = nullptr;  // Socket's context for versions up to v10
};

// Emptied by shut_down, never destroyed: threads may outlive the process's exit handlers.
State& state() {
    static NeverDestroyed<State> all;
    return all.value;
}

void write_line(const char* kind, const char* format, va_list arguments) {
    char line[512];
    int used = snprintf(line, sizeof line, "%d %s %s", getpid(), name(), kind);
    used += vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    used = used > static_cast<int>(sizeof line) - 2 ? static_cast<int>(sizeof line) - 2 : used;
    line[used++] = '\n';
    const char* path = getenv("SOFTNET_CHECK_LOG");
    const int fd = path != nullptr ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)
                                   : (*kind != '\0' ? dup(STDERR_FILENO) : -1);
    if (fd >= 0) {
        [[maybe_unused]] const ssize_t written = write(fd, line, used);
        ::close(fd);
    }
}

bool fails(const char* what) {
    const char* wanted = getenv("SOFTNET_CHECK_FAIL");
    return wanted != nullptr && std::string(name()) + ":" + what == wanted;
}

void* add_comm(CommKind kind, void* inner_comm) {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    Comm* comm = new Comm{};
    comm->kind = kind;
    comm->inner = inner_comm;
    comm->number = all.made[static_cast<int>(kind)]++;
    all.comms.insert(comm);
    return comm;
}

bool known_context(void* ctx, const char* call, void** inner_context) {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (ctx == nullptr) {
        *inner_context = all.shared;
        return all.shared != nullptr;
    }
    if (all.contexts.count(static_cast<Context*>(ctx)) == 0) {
        violation("%s with a context that init did not give", call);
        return false;
    }
    *inner_context = static_cast<Context*>(ctx)->inner;
    return true;
}

}  // namespace

const deft_net_v12_t& inner() {
    return *socket_table();
}

bool enabled(const char* variable) {
    const char* text = getenv(variable);
    return text != nullptr && *text != '\0' && strcmp(text, "0") != 0;
}

bool not_now() {
    static const int every = [] {
        const char* text = getenv("SOFTNET_CHECK_NULLS");
        return text != nullptr ? atoi(text) : 0;
    }();
    static std::atomic<unsigned> calls{0};
    // Scattered: a caller that polls two things in turn must not always be refused the same one.
    return every > 0 && (calls.fetch_add(1) * 2654435761u >> 16) % every == 0;
}

Comm* known(void* comm, const char* call) {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    Comm* ours = static_cast<Comm*>(comm);
    if (all.comms.count(ours) == 0) {
        violation("%s on a comm that does not exist or was closed", call);
        return nullptr;
    }
    return ours;
}

bool poll_background() {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    bool any = false;
    for (Comm* comm : all.comms) {
        const std::lock_guard<std::mutex> comm_lock(comm->mutex);
        while (!comm->background.empty()) {
            int done = 0;
            int size = 0;
            const int result = inner().test(comm->background.front()->inner, &done, &size);
            if (result == DEFT_NET_SUCCESS && done == 0) {
                any = true;
                break;
            }
            comm->background.pop_front();  // a failure shows in the next call on this comm
        }
    }
    return any;
}

void note(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line("", format, arguments);
    va_end(arguments);
}

void violation(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line("violation: ", format, arguments);
    va_end(arguments);
}

int init(int abi, void** ctx, uint64_t comm_id, const deft_net_comm_config_t* config) {
    note("init v%d comm %llx traffic class %d", abi, static_cast<unsigned long long>(comm_id),
         config != nullptr ? config->trafficClass : DEFT_NET_TRAFFIC_CLASS_UNDEF);
    trace("init v%d", abi);
    if (fails("init")) {
        return DEFT_NET_SYSTEM_ERROR;
    }
    deft_net_comm_config_t inner_config{DEFT_NET_TRAFFIC_CLASS_UNDEF};
    void* inner_context = nullptr;
    const int result = inner().init(&inner_context, comm_id, &inner_config, nullptr, nullptr);
    if (result != DEFT_NET_SUCCESS) {
        return result;
    }
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (abi <= 10) {
        // After its last communicator NCCL may run an old plugin's init again without a finalize.
        if (all.shared == nullptr) {
            all.shared = inner_context;
        } else {
            inner().finalize(inner_context);
        }
    } else {
        *ctx = new Context{inner_context, comm_id};
        all.contexts.insert(static_cast<Context*>(*ctx));
    }
    return DEFT_NET_SUCCESS;
}

int finalize(void* ctx) {
    note("finalize");
    trace("finalize");
    if (ctx == nullptr) {
        return DEFT_NET_SUCCESS;  // after a failed init
    }
    void* inner_context = nullptr;
    if (!known_context(ctx, "finalize", &inner_context)) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.contexts.erase(static_cast<Context*>(ctx));
    if (all.contexts.empty() && !all.comms.empty()) {
        violation("finalize of the last communicator with %zu comms open", all.comms.size());
    }
    delete static_cast<Context*>(ctx);
    return inner().finalize(inner_context);
}

int devices(int* count) {
    note("devices");
    trace("devices");
    if (fails("devices")) {
        return DEFT_NET_SYSTEM_ERROR;
    }
    const int result = inner().devices(count);
    if (fails("nodevices")) {
        *count = 0;
    }
    return result;
}

int properties(int device, deft_net_props_v12_t* props) {
    trace("getProperties %d", device);
    const int result = inner().getProperties(device, props);
    if (result == DEFT_NET_SUCCESS && enabled("SOFTNET_CHECK_GDR")) {
        props->ptrSupport |= DEFT_NET_PTR_CUDA;
    }
    return result;
}

int listen(void* ctx, int device, void* handle, void** listen_comm) {
    void* inner_context = nullptr;
    if (!known_context(ctx, "listen", &inner_context)) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    void* inner_comm = nullptr;
    const int result = inner().listen(inner_context, device, handle, &inner_comm);
    *listen_comm = result == DEFT_NET_SUCCESS ? add_comm(CommKind::Listen, inner_comm) : nullptr;
    trace("listen %d %s", device, label(static_cast<Comm*>(*listen_comm)).text);
    return result;
}

int connect(void* ctx, int device, void* handle, void** send_comm) {
    if (*send_comm != nullptr) {
        violation("connect with a comm that is not NULL");
    }
    void* inner_context = nullptr;
    if (!known_context(ctx, "connect", &inner_context)) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    *send_comm = nullptr;
    if (not_now()) {
        return DEFT_NET_SUCCESS;
    }
    void* inner_comm = nullptr;
    const int result = inner().connect(inner_context, device, handle, &inner_comm, nullptr);
    if (inner_comm != nullptr) {
        *send_comm = add_comm(CommKind::Send, inner_comm);
        note("connect device %d", device);
    }
    trace("connect %d %s %p", device, label(static_cast<Comm*>(*send_comm)).text, handle);
    return result;
}

int accept(void* listen_comm, void** recv_comm) {
    Comm* listening = known(listen_comm, "accept");
    if (listening == nullptr || listening->kind != CommKind::Listen) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    *recv_comm = nullptr;
    if (not_now()) {
        return DEFT_NET_SUCCESS;
    }
    void* inner_comm = nullptr;
    const int result = inner().accept(listening->inner, &inner_comm, nullptr);
    if (inner_comm != nullptr) {
        *recv_comm = add_comm(CommKind::Receive, inner_comm);
        note("accept");
    }
    trace("accept %s %s", label(listening).text, label(static_cast<Comm*>(*recv_comm)).text);
    return result;
}

int reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle) {
    Comm* ours = known(comm, "regMr");
    const bool device = type == DEFT_NET_PTR_CUDA;
    if (ours == nullptr || (device && !enabled("SOFTNET_CHECK_GDR")) ||
        (!device && type != DEFT_NET_PTR_HOST)) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    trace("regMr %s %zu %s", label(ours).text, bytes, device ? "device" : "host");
    const std::lock_guard<std::mutex> lock(ours->mutex);
    Region* region = new Region{static_cast<const char*>(data), bytes, device};
    ours->regions.insert(region);
    *mhandle = region;
    return DEFT_NET_SUCCESS;
}

int dereg_mr(void* comm, void* mhandle) {
    Comm* ours = known(comm, "deregMr");
    if (ours == nullptr) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    trace("deregMr %s", label(ours).text);
    const std::lock_guard<std::mutex> lock(ours->mutex);
    if (ours->regions.erase(static_cast<Region*>(mhandle)) == 0) {
        violation("deregMr of a handle not registered on this comm");
        return DEFT_NET_INTERNAL_ERROR;
    }
    delete static_cast<Region*>(mhandle);
    return DEFT_NET_SUCCESS;
}

int close(void* comm, CommKind kind) {
    Comm* ours = known(comm, "close");
    if (ours == nullptr) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    trace("close %s", label(ours).text);
    if (ours->kind != kind) {
        violation("close of a comm of another kind");
    }
    if (kind == CommKind::Receive) {
        note(
            "closeRecv after %zu to flush, %zu flushed, %zu early, largest %zu, deepest %zu, %zu "
            "consumed, %zu not, %zu with junk",
            ours->to_flush, ours->flushed, ours->early, ours->largest, ours->deepest,
            ours->consumed, ours->unconsumed.size(), ours->junk);
    }
    if (!ours->regions.empty()) {
        violation("close with %zu memory regions registered", ours->regions.size());
    }
    bool last = false;
    {
        State& all = state();
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.comms.erase(ours);
        last = all.comms.empty();
    }
    if (last) {
        stop_poller();
    }
    for (Region* region : ours->regions) {
        delete region;
    }
    const int result = ours->kind == CommKind::Send      ? inner().closeSend(ours->inner)
                       : ours->kind == CommKind::Receive ? inner().closeRecv(ours->inner)
                                                         : inner().closeListen(ours->inner);
    delete ours;
    return result;
}

void set_attributes(void* ctx, const deft_net_attr_t* attributes) {
    void* inner_context = nullptr;
    if (attributes == nullptr || ctx == nullptr ||
        !known_context(ctx, "setNetAttr", &inner_context)) {
        violation("setNetAttr without attributes or a context that init gave");
        return;
    }
    // A connection for messages alone is for several operations.
    const auto one_or_all = [](uint32_t mask) { return mask == ~0u || (mask & (mask - 1)) == 0; };
    if (attributes->op == 0 || !one_or_all(attributes->algo) || !one_or_all(attributes->proto)) {
        violation("setNetAttr with masks %x %x %x", attributes->op, attributes->algo,
                  attributes->proto);
    }
    const auto& send = attributes->sendCommAttr;
    const auto& receive = attributes->recvCommAttr;
    trace("setNetAttr op %x algo %x proto %x send %d,%d,%d,%d recv %d,%d,%d,%d", attributes->op,
          attributes->algo, attributes->proto, send.maxConcurrentPeers, send.minConcurrentPeers,
          send.maxFlowsPerPeer, send.minFlowsPerPeer, receive.maxConcurrentPeers,
          receive.minConcurrentPeers, receive.maxFlowsPerPeer, receive.minFlowsPerPeer);
    char thread[16] = "";
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    note("setNetAttr on %s op %x algo %x proto %x send %d,%d,%d,%d recv %d,%d,%d,%d", thread,
         attributes->op, attributes->algo, attributes->proto, send.maxConcurrentPeers,
         send.minConcurrentPeers, send.maxFlowsPerPeer, send.minFlowsPerPeer,
         receive.maxConcurrentPeers, receive.minConcurrentPeers, receive.maxFlowsPerPeer,
         receive.minFlowsPerPeer);
}

void shut_down() {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.shared != nullptr) {
        inner().finalize(all.shared);
        all.shared = nullptr;
    }
    all.comms.clear();
    all.contexts.clear();
}

}  // namespace softdev::net::checking
