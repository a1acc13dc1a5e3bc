// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/connection.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "softdev/nccl/env.h"
#include "softdev/nccl/ll.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

// The buffers in the order in which NCCL registers them.
constexpr Protocol kRegistered[] = {Protocol::kLL, Protocol::kLL128, Protocol::kSimple};

uint32_t pack(const Shape& shape) {
    return static_cast<uint32_t>(shape.protocol) | static_cast<uint32_t>(shape.op) << 2 |
           shape.steps_per_slice << 6 | (shape.flows & 0x7f) << 10 | (shape.peers & 0x7fff) << 17;
}

size_t env_size(const char* name, size_t fallback) {
    const int64_t value = env_int(name, static_cast<int64_t>(fallback));
    // Eight steps of whole 128-byte lines.
    const size_t bytes = value > 0 ? static_cast<size_t>(value) : fallback;
    return std::max<size_t>(bytes / 1024 * 1024, 1024);
}

// Device memory from whatever thread this is, also one that captures a stream.
class DeviceCalls {
public:
    explicit DeviceCalls(CUcontext context) {
        cuThreadExchangeStreamCaptureMode(&mode_);
        pushed_ = cuCtxPushCurrent(context) == CUDA_SUCCESS;
    }
    ~DeviceCalls() {
        CUcontext before = nullptr;
        if (pushed_) {
            cuCtxPopCurrent(&before);
        }
        cuThreadExchangeStreamCaptureMode(&mode_);
    }
    DeviceCalls(const DeviceCalls&) = delete;
    DeviceCalls& operator=(const DeviceCalls&) = delete;

private:
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool pushed_ = false;
};

}  // namespace

const char* pattern_name(Pattern pattern) {
    switch (pattern) {
        case Pattern::kRing:
            return "Ring";
        case Pattern::kTree:
            return "Tree";
        case Pattern::kP2p:
            return "P2P";
    }
    return "?";
}

const BufferSizes& BufferSizes::process() {
    // Read once, as NCCL's cached parameters are.
    static const BufferSizes sizes{
        env_size("NCCL_BUFFSIZE", 4 << 20), env_size("NCCL_LL_BUFFSIZE", 512 << 10),
        env_size("NCCL_LL128_BUFFSIZE", 4915200), env_size("NCCL_P2P_NET_CHUNKSIZE", 128 << 10)};
    return sizes;
}

// Under GPU direct all buffers are device memory except a sender's LL buffer.
bool Connection::on_device(size_t protocol) const {
    return rules_.device && !(sender_ && protocol == static_cast<size_t>(Protocol::kLL));
}

Connection::Connection(ConnectionKey key, bool sender, int tag, MemoryRules rules)
    : key_(key), sender_(sender), tag_(tag), rules_(rules), shape_(pack({})) {
    const BufferSizes& sizes = BufferSizes::process();
    const bool simple_only = key.pattern == Pattern::kP2p;
    sizes_ = {simple_only ? sizes.p2p_chunk * kSteps : sizes.simple, simple_only ? 0 : sizes.ll,
              simple_only ? 0 : sizes.ll128};
    for (size_t i = 0; i < sizes_.size(); ++i) {
        if (sizes_[i] == 0) {
            continue;
        }
        if (on_device(i)) {
            const DeviceCalls calls(rules_.context);
            CUdeviceptr memory = 0;
            if (cuMemAlloc(&memory, sizes_[i]) != CUDA_SUCCESS) {
                throw std::bad_alloc();
            }
            buffers_[i] = reinterpret_cast<std::byte*>(memory);
            continue;
        }
        // Mapped, page aligned, zero, and resident only as far as it is used.
        void* memory =
            mmap(nullptr, sizes_[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            throw std::bad_alloc();
        }
        buffers_[i] = static_cast<std::byte*>(memory);
    }
}

Connection::~Connection() {
    for (size_t i = 0; i < sizes_.size(); ++i) {
        if (buffers_[i] == nullptr) {
            continue;
        }
        if (on_device(i)) {
            const DeviceCalls calls(rules_.context);
            cuMemFree(reinterpret_cast<CUdeviceptr>(buffers_[i]));
        } else {
            munmap(buffers_[i], sizes_[i]);
        }
    }
}

Shape Connection::shape() const {
    const uint32_t packed = shape_.load(std::memory_order_acquire);
    return {static_cast<Protocol>(packed & 3), packed >> 6 & 0xf,
            static_cast<NetOp>(packed >> 2 & 0xf), packed >> 10 & 0x7f, packed >> 17};
}

void Connection::set_shape(const Shape& shape, uint64_t base) {
    base_ = base;
    shape_.store(pack(shape), std::memory_order_release);
}

size_t Connection::slice_bytes() const {
    const Shape now = shape();
    return sizes_[static_cast<size_t>(now.protocol)] / kSteps * now.steps_per_slice;
}

size_t Connection::capacity(const Shape& shape) const {
    const size_t wire =
        sizes_[static_cast<size_t>(shape.protocol)] / kSteps * shape.steps_per_slice;
    switch (shape.protocol) {
        case Protocol::kSimple:
            return wire;
        case Protocol::kLL:
            return wire / 2;
        case Protocol::kLL128:
            return wire / (kLL128Lines * kLL128Line) * kLL128Lines * kLL128Payload;
    }
    return wire;
}

std::byte* Connection::address(uint64_t index) const {
    return buffers_[static_cast<size_t>(shape().protocol)] + slot(index) * slice_bytes();
}

bool Connection::ready_for(const Shape& wanted) {
    if (shape() == wanted) {
        return true;
    }
    if (!sender_) {
        return false;
    }
    if (done_.load(std::memory_order_acquire) != posted_.load(std::memory_order_relaxed)) {
        return false;
    }
    set_shape(wanted, posted_.load(std::memory_order_relaxed));
    return true;
}

bool Connection::can_fill() const {
    return posted_.load(std::memory_order_relaxed) - done_.load(std::memory_order_acquire) <
           depth();
}

std::byte* Connection::fill_at() const {
    return address(posted_.load(std::memory_order_relaxed));
}

void Connection::post(size_t wire_bytes) {
    const uint64_t index = posted_.load(std::memory_order_relaxed);
    bytes_[slot(index)] = wire_bytes;
    posted_.store(index + 1, std::memory_order_release);
}

bool Connection::can_take() const {
    return done_.load(std::memory_order_acquire) != consumed_.load(std::memory_order_relaxed);
}

std::byte* Connection::take_at() const {
    return address(consumed_.load(std::memory_order_relaxed));
}

size_t Connection::take_size() const {
    return bytes_[slot(consumed_.load(std::memory_order_relaxed))];
}

void Connection::release() {
    consumed_.store(consumed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void Connection::open(const Shape& shape, size_t slices, size_t most_bytes) {
    opened_.fetch_add(slices);
    if (slices == 0 || sender_) {
        return;
    }
    std::lock_guard lock(expected_mutex_);
    expected_.push_back({shape, slices, most_bytes});
    expected_count_.fetch_add(1);
}

Connection::Poll Connection::progress(net::Net& net, bool optional_completion, int* error) {
    return sender_ ? progress_send(net, error) : progress_receive(net, optional_completion, error);
}

bool Connection::starting(Shape* wanted) {
    const bool any =
        sender_ ? started_ != posted_.load(std::memory_order_acquire) : next_expected();
    if (any) {
        *wanted = shape();
    }
    return any;
}

Connection::Poll Connection::progress_send(net::Net& net, int* error) {
    while (started_ != posted_.load(std::memory_order_acquire)) {
        const unsigned at = slot(started_);
        *error = net.isend(comm, address(started_), bytes_[at], tag_,
                           handles[static_cast<size_t>(shape().protocol)], nullptr, &requests_[at]);
        if (*error != 0) {
            return Poll::kFailed;
        }
        if (requests_[at] == nullptr) {
            break;
        }
        ++started_;
    }
    uint64_t done = done_.load(std::memory_order_relaxed);
    bool worked = false;
    while (done != started_) {
        int finished = 0;
        *error = net.test(requests_[slot(done)], &finished, nullptr);
        if (*error != 0) {
            return Poll::kFailed;
        }
        if (finished == 0) {
            break;
        }
        done_.store(++done, std::memory_order_release);
        worked = true;
    }
    return worked ? Poll::kWorked : Poll::kIdle;
}

bool Connection::next_expected() {
    if (left_to_post_ > 0) {
        return true;
    }
    if (expected_count_.load() == 0) {
        return false;
    }
    std::lock_guard lock(expected_mutex_);
    const Expected next = expected_.front();
    const uint64_t posted = posted_.load(std::memory_order_relaxed);
    if (!(next.shape == shape())) {
        if (consumed_.load(std::memory_order_acquire) != posted) {
            return false;  // the kernel still reads slices of the old shape; it rings when it is
                           // done
        }
        set_shape(next.shape, posted);
    }
    left_to_post_ = next.slices;
    most_bytes_ = next.most_bytes;
    expected_.pop_front();
    expected_count_.fetch_sub(1);
    return true;
}

// Any value: the caller of isend and irecv owes none.
std::array<void*, kSteps> Connection::filled_with_junk() {
    std::array<void*, kSteps> junk{};
    junk.fill(reinterpret_cast<void*>(0xdeadbeefdeadbeef));
    return junk;
}

// Every receive that the kernel has consumed is told to the plugin once, in order.
int Connection::tell_consumed(net::Net& net) {
    uint64_t told = told_consumed_.load(std::memory_order_relaxed);
    for (; told < consumed_.load(std::memory_order_acquire); ++told) {
        const int result = net.irecv_consumed(comm, 1, received_[told % kSteps]);
        if (result != 0) {
            return result;
        }
        told_consumed_.store(told + 1, std::memory_order_release);
    }
    return 0;
}

Connection::Poll Connection::progress_receive(net::Net& net, bool optional_completion, int* error) {
    const bool consumed = told_consumed_.load(std::memory_order_relaxed) != consumed_.load();
    *error = tell_consumed(net);
    if (*error != 0) {
        return Poll::kFailed;
    }
    while (next_expected()) {
        const uint64_t posted = posted_.load(std::memory_order_relaxed);
        // Of what is consumed only what the plugin knows to be: its request is kept until then.
        if (posted - told_consumed_.load(std::memory_order_relaxed) >= depth()) {
            break;
        }
        const unsigned at = slot(posted);
        void* data = address(posted);
        size_t bytes = std::min(slice_bytes(), most_bytes_);
        const bool low_latency = shape().protocol != Protocol::kSimple;
        void* handle = handles[static_cast<size_t>(shape().protocol)];
        int tag = tag_;
        void* phandle = nullptr;
        void* request = requests_[at];
        if (low_latency && optional_completion) {
            request = DEFT_NET_OPTIONAL_RECV_COMPLETION;
        }
        *error = net.irecv(comm, 1, &data, &bytes, &tag, &handle, &phandle, &request);
        if (*error != 0) {
            return Poll::kFailed;
        }
        if (request == DEFT_NET_OPTIONAL_RECV_COMPLETION) {
            log_warn("NET/%s: irecv left its request at the early completion marker", net.name());
            *error = DEFT_NET_INTERNAL_ERROR;
            return Poll::kFailed;
        }
        if (request == nullptr) {
            break;
        }
        requests_[at] = request;
        received_[posted % kSteps] = request;
        posted_.store(posted + 1, std::memory_order_relaxed);
        --left_to_post_;
    }
    const Poll finished = finish_receives(net, error);
    return finished == Poll::kIdle && consumed ? Poll::kWorked : finished;
}

// Tests the oldest receives and flushes what came, oldest first both.
Connection::Poll Connection::finish_receives(net::Net& net, int* error) {
    while (started_ != posted_.load(std::memory_order_relaxed)) {
        const unsigned at = slot(started_);
        int finished = 0;
        int size = 0;
        *error = net.test(requests_[at], &finished, &size);
        if (*error != 0) {
            return Poll::kFailed;
        }
        if (finished == 0) {
            break;
        }
        bytes_[at] = static_cast<size_t>(size);
        flushes_[at] = nullptr;
        const auto protocol = static_cast<size_t>(shape().protocol);
        if (rules_.flush && shape().protocol == Protocol::kSimple && size > 0) {
            void* data = address(started_);
            *error = net.iflush(comm, 1, &data, &size, &handles[protocol], &requests_[at]);
            if (*error != 0) {
                return Poll::kFailed;
            }
            flushes_[at] = requests_[at];
        }
        ++started_;
    }
    uint64_t done = done_.load(std::memory_order_relaxed);
    bool worked = false;
    while (done != started_) {
        int finished = 1;
        void*& flush = flushes_[slot(done)];
        if (flush != nullptr) {
            *error = net.test(flush, &finished, nullptr);
            if (*error != 0) {
                return Poll::kFailed;
            }
        }
        if (finished == 0) {
            break;
        }
        flush = nullptr;
        done_.store(++done, std::memory_order_release);
        worked = true;
    }
    return worked ? Poll::kWorked : Poll::kIdle;
}

bool Connection::drained() const {
    return sender_ ? done_.load() == posted_.load() : told_consumed_.load() == consumed_.load();
}

bool Connection::is_open() const {
    return opened_.load() != (sender_ ? done_.load() : told_consumed_.load());
}

int Connection::register_buffers(net::Net& net) {
    for (const Protocol protocol : kRegistered) {
        const auto i = static_cast<size_t>(protocol);
        if (buffers_[i] != nullptr) {
            const int result =
                net.reg_mr(comm, buffers_[i], sizes_[i],
                           on_device(i) ? DEFT_NET_PTR_CUDA : DEFT_NET_PTR_HOST, &handles[i]);
            if (result != 0) {
                return result;
            }
        }
    }
    return 0;
}

int Connection::close(net::Net& net) {
    if (comm == nullptr) {
        return 0;
    }
    int first = 0;
    const auto keep = [&first](int result) { first = first != 0 ? first : result; };
    for (const Protocol protocol : kRegistered) {
        void*& handle = handles[static_cast<size_t>(protocol)];
        if (handle != nullptr) {
            keep(net.dereg_mr(comm, handle));
            handle = nullptr;
        }
    }
    keep(sender_ ? net.close_send(comm) : net.close_recv(comm));
    comm = nullptr;
    return first;
}

}  // namespace softdev::nccl
