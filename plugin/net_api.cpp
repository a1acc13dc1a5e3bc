// SPDX-License-Identifier: Apache-2.0
#include "plugin/net_api.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/config.h"
#include "base/job_folder.h"
#include "base/link_stats.h"
#include "base/log.h"
#include "base/presence.h"
#include "plugin/connection.h"
#include "plugin/core/idle_progress.h"
#include "plugin/core/io_threads.h"
#include "plugin/core/progress_thread.h"
#include "plugin/device_ports.h"
#include "plugin/gpu_support.h"
#include "plugin/process_ports.h"
#include "plugin/tcp/descriptors.h"
#include "plugin/tcp/probed_rates.h"
#include "topology/rdma.h"
#include "topology/rdma_presence.h"

namespace deft::net::api {
namespace {

// One communicator's, from v11 on.
struct Context {
    int traffic_class = DEFT_NET_TRAFFIC_CLASS_UNDEF;
    std::uint64_t communicator = 0;  // NCCL's number of it
};

constexpr std::size_t kMaxMessage = std::size_t{1} << 30;  // test() reports sizes as int
constexpr Nanos kCloseLimit = 300 * kMillisecond;

template <class Function>
int guarded(const char* call, Function&& function) noexcept {
    try {
        return function();
    } catch (const std::exception& error) {
        DEFT_WARN("%s: %s", call, error.what());
    } catch (...) {
        DEFT_WARN("%s: unknown exception", call);
    }
    return DEFT_NET_INTERNAL_ERROR;
}

void count_call() {
    LinkStats::process().plugin_calls.fetch_add(1, std::memory_order_relaxed);
}

bool switched_off() {
    return Config::process().is(Key::Mode, "off");
}

// Of what NCCL was told at first, which holds for the life of the process.
GpuSupport gpu_support_of(const Device& device) {
    const bool drives = !process_ports_of(device, first_ports()).empty();
    return drives ? process_gpu_support() : GpuSupport{};
}

ConnectionOptions connection_options(void* context, const Device& device) {
    ConnectionOptions options;
    options.context = context;
    if (context != nullptr) {
        options.communicator = static_cast<const Context*>(context)->communicator;
    }
    options.link_timeout = Config::process().duration(Key::LinkTimeout).count();
    options.congestion = Config::process().text(Key::TcpCongestion);
    options.zerocopy = Config::process().text(Key::TcpZerocopy);
    options.streams = static_cast<std::size_t>(Config::process().integer(Key::Streams));
    options.checksum = Config::process().is(Key::Checksum, "crc32c");
    options.ports = process_ports_of(device, ports_now());
    options.gpu = gpu_support_of(device).copies;
    return options;
}

// Where the job is NCCL's IB's, that there is no link for lanes is no fault.
bool needs_no_device() {
    return switched_off() || process_rdma().use == RdmaUse::Aside;
}

std::size_t devices_or_warn() {
    std::string problem;
    const std::size_t count = process_devices(problem);
    if (count == 0) {
        log::write(needs_no_device() ? log::Level::Info : log::Level::Warn, "%s", problem.c_str());
    }
    return count;
}

std::size_t shown_devices() {
    return switched_off() || left_to_rdma() ? 0 : devices_or_warn();
}

std::shared_ptr<const Device> device_or_warn(const char* call, int index) {
    std::string problem;
    std::shared_ptr<const Device> device = process_device(index, problem);
    if (device == nullptr) {
        DEFT_WARN("%s: %s", call, problem.c_str());
    }
    return device;
}

// An NCCL that gives each communicator a context tells its traffic class with it.
void say_whose(const void* context) {
    connecting_beside_rdma(
        context == nullptr
            ? std::nullopt
            : std::optional<bool>(static_cast<const Context*>(context)->traffic_class ==
                                  kLaneTrafficClass));
}

std::span<std::byte, wire::kHandleBytes> handle_span(void* handle) {
    return std::span<std::byte, wire::kHandleBytes>(static_cast<std::byte*>(handle),
                                                    wire::kHandleBytes);
}

// Hands a connection that has just been made to NCCL, and to a helper thread if there are any, else
// to the idle thread.
template <class End>
void* handed_over(std::unique_ptr<End> end) {
    const std::int64_t threads = Config::process().integer(Key::IoThreads);
    if (end != nullptr) {
        (void)(threads > 0 ? help(*end, static_cast<std::size_t>(threads))
                           : progress_when_idle(*end));
    }
    return static_cast<ConnectionEnd*>(
        end.release());  // deregMr does not say which of the two it is
}

template <class End>
End* from(void* comm) {
    return static_cast<End*>(static_cast<ConnectionEnd*>(comm));
}

// `post` begins a message; NULL in `request` if it has to come again.
template <class End, class Post>
int begin(End& end, void** request, Post&& post) {
    int code = DEFT_NET_SUCCESS;
    if (const Call call(end); call) {
        if (!end.failure()) {
            *request = post();
        }
        code = end.failure().code;
    }
    if (end.helper != nullptr) {
        wake(*end.helper);
    }
    return code;
}

template <class End>
int close(std::unique_ptr<End> end) {
    if (end != nullptr) {
        end->close(kCloseLimit);
    }
    return DEFT_NET_SUCCESS;
}

template <class End>
std::unique_ptr<End> taken_back(void* comm) {
    std::unique_ptr<End> end(from<End>(comm));
    if (end != nullptr) {
        stop_progress(*end);
    }
    return end;
}

// True if it goes on without NCCL, which was told that messages are sent that are not there yet.
bool goes_on(std::unique_ptr<Sender>& sender) {
    if (sender == nullptr || !sender->owes(kCloseLimit)) {
        return false;
    }
    sender->leave();
    std::unique_ptr<ConnectionEnd> endpoint = std::move(sender);
    const bool taken = see_off(endpoint);
    sender.reset(static_cast<Sender*>(endpoint.release()));
    return taken;
}

// True if the request is done; `code` is the connection's failure, 0 for none.
template <class End>
bool test(Request* request, std::size_t& size, int& code) {
    auto& end = *static_cast<End*>(request->owner);
    const Call call(end);
    if (!call) {
        return false;
    }
    const bool finished = end.test(request, steady_now(), &size);
    code = end.failure().code;
    return finished;
}

int bad_argument(const char* call, const char* what) {
    DEFT_WARN("%s: %s", call, what);
    return DEFT_NET_INVALID_ARGUMENT;
}

int registered(const char* call, void* comm, Memory memory, int type, void** handle) {
    if (type == DEFT_NET_PTR_CUDA) {
        memory.kind = Memory::Kind::Device;
    } else if (type != DEFT_NET_PTR_HOST || memory.dmabuf >= 0) {
        return bad_argument(call, "there is no such type of memory");
    }
    const bool on_gpu = memory.kind == Memory::Kind::Device;
    GpuMemory* const copies = on_gpu ? process_gpu_support().copies : nullptr;
    if (on_gpu && copies == nullptr) {
        return bad_argument(call, "only host memory is supported");
    }
    if (on_gpu) {
        copies->prepare(memory.data);
    }
    const auto* const end = static_cast<const ConnectionEnd*>(comm);
    const auto domains = end == nullptr ? decltype(end->domains()){} : end->domains();
    std::string problem;
    auto region = std::make_unique<Region>(memory, domains, problem);
    if (!problem.empty()) {
        DEFT_WARN_ONCE("memory%s cannot be registered, and goes over TCP only: %s",
                       on_gpu ? " of a GPU" : "", problem.c_str());
    }
    *handle = region.release();
    return DEFT_NET_SUCCESS;
}

}  // namespace

int init(void** context, int traffic_class, deft_net_logger_t logger, int version,
         std::uint64_t communicator) noexcept {
    const int result = guarded("init", [&] {
        count_call();
        LinkStats::process().plugin_version.store(version, std::memory_order_relaxed);
        log::set_nccl_logger(logger);
        Presence::process().plugin_initialised();
        note_job_folder();
        if (context != nullptr) {
            *context = nullptr;
        }
        const Config& config = Config::process();
        if (!config.problems().empty()) {
            for (const std::string& problem : config.problems()) {
                DEFT_WARN("%s", problem.c_str());
            }
            return static_cast<int>(DEFT_NET_INVALID_USAGE);
        }
        log::configuration_warnings();
        std::size_t shown = 0;
        if (switched_off()) {
            DEFT_INFO("mode off (%s): NCCL uses its own transport",
                      config.setting(Key::Mode).origin.c_str());
        } else {
            shown = shown_devices();
            (void)first_ports();  // opening takes its time, which no connection has
            if (shown == 0 && !needs_no_device()) {
                return static_cast<int>(DEFT_NET_SYSTEM_ERROR);
            }
            if (shown > 0) {
                // Neither has any time for a file, nor for the kernel.
                (void)ProbedRates::process();
                Descriptors::make_room();
            }
        }
        // Without devices none. NCCL 2.28 ends such a plugin at once and keeps the pointer; where
        // InfiniBand cannot be used, the next network frees it once more.
        if (context != nullptr && shown > 0) {
            *context = std::make_unique<Context>(Context{traffic_class, communicator}).release();
        }
        return static_cast<int>(DEFT_NET_SUCCESS);
    });
    // Not before the result is known: communicators may be made in several threads at once.
    Presence::process().plugin_refused.store(result != DEFT_NET_SUCCESS, std::memory_order_release);
    return result;
}

int devices(int* count) noexcept {
    return guarded("devices", [&] {
        count_call();
        *count = static_cast<int>(shown_devices());
        return DEFT_NET_SUCCESS;
    });
}

int properties(int index, Properties& properties) noexcept {
    return guarded("getProperties", [&] {
        const std::shared_ptr<const Device> device = device_or_warn("getProperties", index);
        if (device == nullptr) {
            return static_cast<int>(DEFT_NET_INVALID_ARGUMENT);
        }
        // NCCL wants writable strings that stay: the device lives as long as the process.
        properties.name = const_cast<char*>(device->name.c_str());
        properties.pci_path =
            device->pci_path.empty() ? nullptr : const_cast<char*>(device->pci_path.c_str());
        properties.guid = device->guid;
        const std::int64_t speed = told_speed(*device, process_ports_of(*device, first_ports()));
        properties.speed_mbps = static_cast<int>(std::min<std::int64_t>(speed, 1 << 30));
        properties.max_bytes = kMaxMessage;
        properties.pointer_support |= gpu_support_of(*device).pointers;
        return static_cast<int>(DEFT_NET_SUCCESS);
    });
}

int listen(void* context, int index, void* handle, void** comm) noexcept {
    return guarded("listen", [&] {
        count_call();
        *comm = nullptr;
        const std::shared_ptr<const Device> device = device_or_warn("listen", index);
        if (device == nullptr) {
            return static_cast<int>(DEFT_NET_INVALID_ARGUMENT);
        }
        std::string problem;
        const ConnectionOptions options = connection_options(context, *device);
        say_whose(context);
        std::unique_ptr<Listener> listener =
            Listener::open(device, options, handle_span(handle), problem);
        if (listener == nullptr) {
            DEFT_WARN("listen: %s", problem.c_str());
            return static_cast<int>(DEFT_NET_SYSTEM_ERROR);
        }
        *comm = listener.release();
        return static_cast<int>(DEFT_NET_SUCCESS);
    });
}

int connect(void* context, int index, void* handle, void** comm) noexcept {
    return guarded("connect", [&] {
        count_call();
        *comm = nullptr;
        const std::shared_ptr<const Device> device = device_or_warn("connect", index);
        if (device == nullptr) {
            return static_cast<int>(DEFT_NET_INVALID_ARGUMENT);
        }
        say_whose(context);
        std::unique_ptr<Sender> sender;
        const int result = net::connect(
            device, [&] { return connection_options(context, *device); }, handle_span(handle),
            steady_now(), sender);
        *comm = handed_over(std::move(sender));
        return result;
    });
}

int accept(void* listener, void** comm) noexcept {
    return guarded("accept", [&] {
        count_call();
        *comm = handed_over(static_cast<Listener*>(listener)->accept(steady_now()));
        return DEFT_NET_SUCCESS;
    });
}

int isend(void* comm, void* data, std::size_t size, void* memory, void** request) noexcept {
    return guarded("isend", [&] {
        count_call();
        auto* sender = from<Sender>(comm);
        *request = nullptr;
        if (size > kMaxMessage) {
            return bad_argument("isend", "the message is larger than maxP2pBytes");
        }
        return begin(*sender, request, [&] {
            return sender->isend(data, size, steady_now(), static_cast<const Region*>(memory));
        });
    });
}

int irecv(void* comm, int count, void** data, const std::size_t* sizes, void* const* memories,
          void** request) noexcept {
    return guarded("irecv", [&] {
        count_call();
        auto* receiver = from<Receiver>(comm);
        if (count != 1) {
            return bad_argument("irecv", "more than maxRecvs buffers");
        }
        *request = nullptr;
        return begin(*receiver, request, [&] {
            const auto* const region =
                static_cast<const Region*>(memories == nullptr ? nullptr : memories[0]);
            return receiver->irecv(data[0], sizes[0], false, steady_now(), region);
        });
    });
}

int reg_mr(void* comm, void* data, std::size_t size, int type, void** handle) noexcept {
    *handle = nullptr;
    return guarded("regMr", [&] { return registered("regMr", comm, {data, size}, type, handle); });
}

int reg_mr_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                  void** handle) noexcept {
    *handle = nullptr;
    return guarded("regMrDmaBuf", [&] {
        Memory memory{data, size};
        memory.dmabuf = fd;
        memory.dmabuf_offset = offset;
        return registered("regMrDmaBuf", comm, memory, type, handle);
    });
}

int dereg_mr(void* comm, void* handle) noexcept {
    return guarded("deregMr", [&] {
        const std::unique_ptr<Region> region(static_cast<Region*>(handle));
        // NCCL may call while its other thread is inside the same connection.
        auto* const end = static_cast<ConnectionEnd*>(comm);
        for (bool released = region == nullptr || end == nullptr; !released;
             std::this_thread::yield()) {
            if (const Call call(*end); call) {
                end->release(region->memory().data, region->memory().size);
                released = true;
            }
        }
        return DEFT_NET_SUCCESS;
    });
}

// Host memory needs no flush. NULL in `request` says that none is to be waited for: so this waits
// for whoever else is inside.
int iflush(void* comm, int count, void** data, int*, void** handles, void** request) noexcept {
    *request = nullptr;
    return guarded("iflush", [&] {
        const auto* const region =
            static_cast<const Region*>(count != 1 || handles == nullptr ? nullptr : handles[0]);
        if (region == nullptr || region->memory().kind == Memory::Kind::Host) {
            return static_cast<int>(DEFT_NET_SUCCESS);
        }
        auto* const receiver = from<Receiver>(comm);
        for (;; std::this_thread::yield()) {
            if (const Call call(*receiver); call) {
                *request = receiver->flush(data[0], *region, steady_now());
                return receiver->failure().code;
            }
        }
    });
}

int test(void* request, int* done, int* sizes) noexcept {
    return guarded("test", [&] {
        *done = 0;
        auto* head = static_cast<Request*>(request);
        std::size_t size = 0;
        int code = DEFT_NET_SUCCESS;
        const bool finished = head->kind == Request::Kind::Send ? test<Sender>(head, size, code)
                                                                : test<Receiver>(head, size, code);
        if (!finished) {
            return code;
        }
        *done = 1;
        if (sizes != nullptr) {
            sizes[0] = static_cast<int>(size);
        }
        return static_cast<int>(DEFT_NET_SUCCESS);
    });
}

int close_send(void* comm) noexcept {
    return guarded("closeSend", [&] {
        std::unique_ptr<Sender> sender = taken_back<Sender>(comm);
        return goes_on(sender) ? static_cast<int>(DEFT_NET_SUCCESS) : close(std::move(sender));
    });
}

int close_recv(void* comm) noexcept {
    return guarded("closeRecv", [&] { return close(taken_back<Receiver>(comm)); });
}

int close_listen(void* comm) noexcept {
    return guarded("closeListen", [&] {
        delete static_cast<Listener*>(comm);
        return DEFT_NET_SUCCESS;
    });
}

int finalize(void* context) noexcept {
    return guarded("finalize", [&] {
        count_call();
        forget_attempts(steady_now(), false, context);
        delete static_cast<Context*>(context);
        return DEFT_NET_SUCCESS;
    });
}

// Hints on how connections will be used; TCP paths have no use for them.
int set_attributes(void*, deft_net_attr_t*) noexcept {
    return DEFT_NET_SUCCESS;
}

}  // namespace deft::net::api
