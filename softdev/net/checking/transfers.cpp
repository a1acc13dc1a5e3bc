// SPDX-License-Identifier: Apache-2.0
// isend, irecv, iflush and test of the checking plugin.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "softdev/net/checking/state.h"
#include "softdev/net/checking/trace.h"
#include "softdev/net/never_destroyed.h"

namespace softdev::net::checking {
namespace {

struct Poller {
    std::mutex mutex;
    std::thread thread;
    std::atomic<bool> stop{false};
};

Poller& poller() {
    static NeverDestroyed<Poller> one;  // its thread ends with the last comm
    return one.value;
}

// The rules isend and irecv share; called with the comm's lock.
void check_post(Comm& comm, const char* call, const void* data, size_t bytes, void* mhandle) {
    if (comm.progress == std::thread::id{}) {
        comm.progress = std::this_thread::get_id();
    } else if (comm.progress != std::this_thread::get_id()) {
        violation("%s from a second thread", call);
    }
    if (comm.in_flight.size() >= DEFT_NET_MAX_REQUESTS) {
        violation("%s with %zu requests outstanding", call, comm.in_flight.size());
    }
    Region* region = static_cast<Region*>(mhandle);
    if (comm.regions.count(region) == 0) {
        violation("%s with a memory handle not registered on this comm", call);
    } else {
        const char* begin = static_cast<const char*>(data);
        if (begin < region->data || begin + bytes > region->data + region->bytes) {
            violation("%s of %zu bytes outside the registered region", call, bytes);
        }
    }
    if (comm.retry && (comm.retry_data != data || comm.retry_bytes != bytes)) {
        violation("%s after a NULL request came with other arguments", call);
    }
    comm.retry = false;
}

// Keeps the request; NULL when the call was answered "not now".
Request* finish_post(Comm& comm, int result, void* inner_request, const void* data, size_t bytes,
                     void** request) {
    *request = nullptr;
    if (result == DEFT_NET_SUCCESS && inner_request != nullptr) {
        auto made = std::make_unique<Request>();
        made->comm = &comm;
        made->inner = inner_request;
        made->bytes = bytes;
        comm.in_flight.push_back(std::move(made));
        comm.largest = std::max(comm.largest, bytes);
        comm.deepest = std::max(comm.deepest, comm.in_flight.size());
        *request = comm.in_flight.back().get();
        return comm.in_flight.back().get();
    } else {
        comm.retry = true;
        comm.retry_data = data;
        comm.retry_bytes = bytes;
    }
    return nullptr;
}

}  // namespace

void start_poller() {
    Poller& own = poller();
    const std::lock_guard<std::mutex> lock(own.mutex);
    if (!own.thread.joinable()) {
        own.stop = false;
        own.thread = std::thread([&own] {
            while (!own.stop) {
                poll_background();
                std::this_thread::sleep_for(std::chrono::microseconds(50));
            }
        });
    }
}

void stop_poller() {
    Poller& own = poller();
    const std::lock_guard<std::mutex> lock(own.mutex);
    own.stop = true;
    if (own.thread.joinable()) {
        own.thread.join();
    }
}

int isend(void* comm, void* data, size_t bytes, int tag, void* mhandle, void** request) {
    Comm* ours = known(comm, "isend");
    if (ours == nullptr || ours->kind != CommKind::Send) {
        violation("isend on something else than a send comm");
        return DEFT_NET_INTERNAL_ERROR;
    }
    const std::lock_guard<std::mutex> lock(ours->mutex);
    ours->junk += *request != nullptr;
    check_post(*ours, "isend", data, bytes, mhandle);
    if (tag < 0) {
        violation("isend with tag %d", tag);
    }
    void* inner_request = nullptr;
    int result = DEFT_NET_SUCCESS;
    if (!not_now()) {
        result = inner().isend(ours->inner, data, bytes, tag, nullptr, nullptr, &inner_request);
    }
    if (finish_post(*ours, result, inner_request, data, bytes, request) != nullptr) {
        trace("isend %s %zu tag %d", label(ours).text, bytes, tag);
    }
    return result;
}

int irecv(void* comm, int n, void** data, const size_t* bytes, const int* tags, void** mhandles,
          void** request) {
    Comm* ours = known(comm, "irecv");
    if (ours == nullptr || ours->kind != CommKind::Receive || n != 1) {
        violation("irecv of %d buffers, or on something else than a receive comm", n);
        return DEFT_NET_INTERNAL_ERROR;
    }
    const std::lock_guard<std::mutex> lock(ours->mutex);
    const bool may_be_early = *request == DEFT_NET_OPTIONAL_RECV_COMPLETION;
    ours->junk += *request != nullptr && !may_be_early;
    check_post(*ours, "irecv", data[0], bytes[0], mhandles[0]);
    void* inner_request = nullptr;
    int result = DEFT_NET_SUCCESS;
    if (!not_now()) {
        size_t size = bytes[0];
        int tag = 0;
        void* none = nullptr;
        result = inner().irecv(ours->inner, 1, data, &size, &tag, &none, &none, &inner_request);
    }
    Request* made = finish_post(*ours, result, inner_request, data[0], bytes[0], request);
    if (made != nullptr) {
        trace("irecv %s %zu tag %d%s", label(ours).text, bytes[0], tags[0],
              may_be_early ? " may be early" : "");
        ours->unconsumed.push_back(made);
        made->to_flush = !may_be_early && static_cast<Region*>(mhandles[0])->device;
        if (may_be_early && enabled("SOFTNET_CHECK_EARLY")) {
            made->kind = Request::Kind::early;
            ++ours->early;
            start_poller();
        }
    }
    return result;
}

int iflush(void* comm, int n, void** data, const int* bytes, void** mhandles, void** request) {
    Comm* ours = known(comm, "iflush");
    if (ours == nullptr || ours->kind != CommKind::Receive || n != 1) {
        violation("iflush of %d buffers, or on something else than a receive comm", n);
        return DEFT_NET_INTERNAL_ERROR;
    }
    const std::lock_guard<std::mutex> lock(ours->mutex);
    Region* region = static_cast<Region*>(mhandles[0]);
    const char* begin = static_cast<const char*>(data[0]);
    if (ours->regions.count(region) == 0 || !region->device) {
        violation("iflush for host memory");
    } else if (bytes[0] <= 0 || begin < region->data ||
               begin + bytes[0] > region->data + region->bytes) {
        violation("iflush of %d bytes outside the registered region", bytes[0]);
    }
    ++ours->flushed;
    trace("iflush %s %d", label(ours).text, bytes[0]);
    *request = nullptr;
    if (ours->flushed > ours->to_flush) {
        violation("iflush of something that did not come");
    }
    // Every other one has nothing to wait for.
    if (ours->flushed % 2 == 0) {
        auto made = std::make_unique<Request>();
        made->comm = ours;
        made->kind = Request::Kind::flush;
        ours->finished.push_back(std::move(made));
        *request = ours->finished.back().get();
    }
    return DEFT_NET_SUCCESS;
}

int consumed(void* comm, int n, void* request) {
    Comm* ours = known(comm, "irecvConsumed");
    if (ours == nullptr || ours->kind != CommKind::Receive || n != 1) {
        violation("irecvConsumed of %d buffers, or on something else than a receive comm", n);
        return DEFT_NET_INTERNAL_ERROR;
    }
    const std::lock_guard<std::mutex> lock(ours->mutex);
    if (ours->unconsumed.empty() || ours->unconsumed.front() != request) {
        violation("irecvConsumed of a receive that is not the oldest one");
        return DEFT_NET_INTERNAL_ERROR;
    }
    ours->unconsumed.pop_front();
    for (const auto& waiting : ours->in_flight) {
        if (waiting.get() == request) {
            violation("irecvConsumed of a receive that is not done");
        }
    }
    ++ours->consumed;
    trace("irecvConsumed %s", label(ours).text);
    return DEFT_NET_SUCCESS;
}

namespace {

// A flush takes two tests.
int test_flush(Request& request, int* done, const int* sizes) {
    if (sizes != nullptr) {
        violation("test of a flush asks for sizes");
    }
    *done = ++request.tests > 1 ? 1 : 0;
    request.done = *done != 0;
    return DEFT_NET_SUCCESS;
}

// Moves the oldest request away; the last ones are kept, to notice a second test.
void retire(Comm& comm) {
    comm.finished.push_back(std::move(comm.in_flight.front()));
    comm.in_flight.pop_front();
    if (comm.finished.size() > 4 * DEFT_NET_MAX_REQUESTS) {
        comm.finished.pop_front();
    }
}

}  // namespace

int test(void* request, int* done, int* sizes) {
    Request* ours = static_cast<Request*>(request);
    if (ours == nullptr || known(ours->comm, "test") == nullptr) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    Comm& comm = *ours->comm;
    const std::lock_guard<std::mutex> lock(comm.mutex);
    if (ours->done) {
        violation("test of a request that was done before");
        return DEFT_NET_INTERNAL_ERROR;
    }
    if (ours->kind == Request::Kind::flush) {
        return test_flush(*ours, done, sizes);
    }
    if (comm.in_flight.front().get() != ours) {
        violation("test of a request that is not the oldest of its comm");
        return DEFT_NET_INTERNAL_ERROR;
    }
    if (ours->kind == Request::Kind::early) {
        // Done for the caller; the bytes are still on their way.
        auto behind = std::make_unique<Request>(*ours);
        comm.background.push_back(std::move(behind));
        *done = 1;
        if (sizes != nullptr) {
            *sizes = static_cast<int>(ours->bytes);
        }
        ours->done = true;
        retire(comm);
        return DEFT_NET_SUCCESS;
    }
    // Receives of one comm end in order: those said to be done early come first.
    if (!comm.background.empty()) {
        *done = 0;
        return DEFT_NET_SUCCESS;
    }
    int size = 0;
    const int result = inner().test(ours->inner, done, &size);
    if (sizes != nullptr) {
        *sizes = size;
    }
    if (result == DEFT_NET_SUCCESS && *done != 0) {
        ours->done = true;
        comm.to_flush += ours->to_flush && size > 0 ? 1 : 0;
        trace("done %s %d", label(&comm).text, comm.kind == CommKind::Receive ? size : 0);
        retire(comm);
    }
    return result;
}

}  // namespace softdev::net::checking
