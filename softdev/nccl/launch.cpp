// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/launch.h"

#include <algorithm>
#include <map>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/cuda_check.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"
#include "softdev/nccl/message.h"
#include "softdev/nccl/operation.h"

namespace softdev::nccl {
namespace {

RingKind ring_kind(Function function) {
    switch (function) {
        case Function::kAllGather:
            return RingKind::kAllGather;
        case Function::kReduceScatter:
            return RingKind::kReduceScatter;
        case Function::kBroadcast:
            return RingKind::kBroadcast;
        case Function::kReduce:
            return RingKind::kReduce;
        default:
            return RingKind::kAllReduce;
    }
}

CallHeader header_of(const Task& task) {
    CallHeader call{};
    call.count = task.count;
    call.function = static_cast<int32_t>(task.function);
    call.type = task.type;
    call.op = task.op >= ncclNumOps ? static_cast<int32_t>(ncclNumOps) : task.op;
    call.root = task.root;
    return call;
}

// Size-1 communicators: the local effect only.
Work local_work(const Task& task) {
    Work work{task.reduction, {}};
    work.reduction.type = task.type;
    Program program;
    if (task.send != task.receive || task.reduction.kind == Arithmetic::kPreMulSum) {
        program.steps.push_back({static_cast<const std::byte*>(task.send),
                                 static_cast<std::byte*>(task.receive), task.count,
                                 Step::kSource | Step::kOriginal | Step::kResult | Step::kFinal});
    }
    work.programs.push_back(std::move(program));
    return work;
}

// NCCL's shares are whole cells of traffic, which LL has four times as much of: 16 KiB,
// since 2.30 32.
size_t cell_bytes(const Task& task, Protocol protocol) {
    const size_t traffic = (nccl_version() >= 23000 ? 32 : 16) << 10;
    const bool per_rank =
        task.function == Function::kAllGather || task.function == Function::kReduceScatter;
    size_t per_byte = per_rank ? static_cast<size_t>(task.communicator->nranks) : 1;
    if (task.function == Function::kAllReduce) {
        per_byte = 2;
    }
    if (protocol == Protocol::kLL) {
        per_byte *= 4;
    }
    constexpr size_t kAligned = 16;
    const size_t unit = per_byte * kAligned;
    return (traffic + unit - 1) / unit * kAligned;
}

Work collective_work(const Task& task, const Choice& choice) {
    Communicator& comm = *task.communicator;
    Work work{task.reduction, {}};
    work.reduction.type = task.type;
    const size_t element = type_size(task.type);
    const size_t cell = cell_bytes(task, choice.protocol);
    const Buffers buffers{static_cast<const std::byte*>(task.send),
                          static_cast<std::byte*>(task.receive)};
    for (int channel = 0; channel < choice.channels; ++channel) {
        const Part part = channel_part(task.count, cell / element, channel, choice.channels);
        if (part.count == 0) {
            continue;
        }
        if (choice.pattern == Pattern::kRing) {
            const RingKind kind = ring_kind(task.function);
            Program program;
            program.shape = ring_shape(kind, choice.protocol);
            program.shape.flows = static_cast<unsigned>(choice.channels);
            program.receive = {comm.connection(Pattern::kRing, channel,
                                               (comm.rank + comm.nranks - 1) % comm.nranks, false)};
            program.send = {
                comm.connection(Pattern::kRing, channel, (comm.rank + 1) % comm.nranks, true)};
            build_ring(program, kind, buffers, task.count, element, part, comm.rank, comm.nranks,
                       task.root);
            work.programs.push_back(std::move(program));
            continue;
        }
        const TreeNode node = tree_node(comm.rank, comm.nranks, channel);
        Program up;
        Program down;
        up.shape = down.shape = {choice.protocol, 1, NetOp::kAllReduce,
                                 static_cast<unsigned>(choice.channels), kTreePeers};
        const bool root = node.parent < 0;
        for (const int child : node.children) {
            (root ? down : up)
                .receive.push_back(comm.connection(Pattern::kTree, channel, child, false));
            down.send.push_back(comm.connection(Pattern::kTree, channel, child, true));
        }
        if (!root) {
            up.send = {comm.connection(Pattern::kTree, channel, node.parent, true)};
            down.receive = {comm.connection(Pattern::kTree, channel, node.parent, false)};
        }
        build_tree(up, down, root, buffers, element, part);
        work.programs.push_back(std::move(up));
        work.programs.push_back(std::move(down));
    }
    return work;
}

void add_accesses(const Task& task, std::vector<softdev_access_t>& accesses) {
    const size_t one = task.count * type_size(task.type);
    const int rank = task.communicator->rank;
    const size_t all = one * static_cast<size_t>(task.communicator->nranks);
    const bool at_root = task.root == rank;
    size_t read = one;
    size_t written = one;
    switch (task.function) {
        case Function::kAllReduce:
            break;
        case Function::kReduce:
            written = at_root ? one : 0;
            break;
        case Function::kBroadcast:
            read = at_root ? one : 0;
            break;
        case Function::kAllGather:
            written = all;
            break;
        case Function::kReduceScatter:
            read = all;
            break;
        case Function::kAlltoAll:
            read = written = all;
            break;
        case Function::kGather:
            written = at_root ? all : 0;
            break;
        case Function::kScatter:
            read = at_root ? all : 0;
            break;
        case Function::kSend:
            written = 0;
            break;
        case Function::kRecv:
            read = 0;
            break;
    }
    if (read > 0) {
        accesses.push_back({task.send, read, 0});
    }
    if (written > 0) {
        accesses.push_back({task.receive, written, 1});
    }
    if (task.reduction.device_scalar != nullptr) {
        accesses.push_back({task.reduction.device_scalar, type_size(task.type), 0});
    }
}

// Before any work is made of it: a wrong count asks for more steps than there is memory for. The
// stream checks again, in its order.
void check_ranges(Communicator& comm, const std::string& label,
                  const std::vector<softdev_access_t>& accesses) {
    for (const softdev_access_t& access : accesses) {
        if (softdevCheckRange(access.ptr, access.bytes, label.c_str()) != CUDA_SUCCESS) {
            const std::string text = label + ": Cuda failure 'invalid argument'";
            comm.fail(ncclUnhandledCudaError, text, false);
            throw Error(ncclInvalidArgument, text);
        }
    }
}

class CurrentContext {
public:
    explicit CurrentContext(CUcontext context) {
        cuda_check(cuCtxPushCurrent(context), "cuCtxPushCurrent");
    }
    ~CurrentContext() {
        CUcontext before = nullptr;
        cuCtxPopCurrent(&before);
    }
};

// A stream waits for what another one has so far.
void order(CUstream before, CUstream after) {
    CUevent event = nullptr;
    cuda_check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    cuda_check(cuEventRecord(event, before), "cuEventRecord");
    cuda_check(cuStreamWaitEvent(after, event, 0), "cuStreamWaitEvent");
    cuEventDestroy(event);
}

}  // namespace

Launch::Launch(std::shared_ptr<Communicator> communicator, std::vector<Task> tasks)
    : communicator_(std::move(communicator)), tasks_(std::move(tasks)) {}

std::string Launch::label() const {
    const std::string first = "nccl" + header_of(tasks_.front()).text();
    return tasks_.size() > 1 ? first + format(" and %zu more", tasks_.size() - 1) : first;
}

std::set<Communicator::Wish> Launch::wishes() {
    std::set<Communicator::Wish> wishes;
    const Communicator& comm = *communicator_;
    const auto wish = [&](Pattern pattern, int channel, int peer, bool sender) {
        const auto from = static_cast<uint16_t>(sender ? comm.rank : peer);
        const auto to = static_cast<uint16_t>(sender ? peer : comm.rank);
        wishes.insert({{pattern, static_cast<uint8_t>(channel), from, to}, sender});
    };
    if (comm.nranks == 1) {
        return wishes;
    }
    choices_.assign(tasks_.size(), {});
    for (size_t i = 0; i < tasks_.size(); ++i) {
        const Task& task = tasks_[i];
        if (is_message(task)) {
            for (const Message& message : messages_of(task)) {
                // All channels at once here too: a size that does not fit is found afterwards.
                const int used = message.peer == comm.rank ? 0 : comm.p2p_channels;
                for (int part = 0; part < used; ++part) {
                    wish(Pattern::kP2p, comm.message_channel(message.peer, message.sending, part),
                         message.peer, message.sending);
                }
            }
            continue;
        }
        // All channels at once, whatever this call needs: the other ranks do the same.
        if (task.count == 0) {
            continue;
        }
        choices_[i] = choose(task);
        const Pattern pattern = choices_[i].pattern;
        for (int channel = 0; channel < comm.channels; ++channel) {
            if (pattern == Pattern::kRing) {
                wish(pattern, channel, (comm.rank + comm.nranks - 1) % comm.nranks, false);
                wish(pattern, channel, (comm.rank + 1) % comm.nranks, true);
                continue;
            }
            const TreeNode node = tree_node(comm.rank, comm.nranks, channel);
            std::vector<int> neighbours = node.children;
            if (node.parent >= 0) {
                neighbours.push_back(node.parent);
            }
            for (const int peer : neighbours) {
                wish(pattern, channel, peer, false);
                wish(pattern, channel, peer, true);
            }
        }
    }
    return wishes;
}

void Launch::start() {
    Communicator& comm = *communicator_;
    std::lock_guard lock(comm.launch_mutex);
    const CurrentContext context(comm.context);
    auto operation = std::make_unique<Operation>();
    operation->communicator = communicator_;
    operation->label = label();
    std::vector<softdev_access_t> accesses;
    std::vector<Task> with_messages;
    std::vector<CUstream> streams;
    for (const Task& task : tasks_) {
        if (std::find(streams.begin(), streams.end(), task.stream) == streams.end()) {
            streams.push_back(task.stream);
        }
        add_accesses(task, accesses);
    }
    check_ranges(comm, operation->label, accesses);
    for (size_t i = 0; i < tasks_.size(); ++i) {
        const Task& task = tasks_[i];
        if (task.function != Function::kSend && task.function != Function::kRecv) {
            operation->announcements.push_back({header_of(task), -1});
        }
        if (is_message(task)) {
            with_messages.push_back(task);
        } else if (comm.nranks == 1) {
            operation->works.push_back(local_work(task));
        } else if (task.count > 0) {
            operation->works.push_back(collective_work(task, choices_[i]));
        }
    }
    if (!with_messages.empty()) {
        operation->works.push_back(message_work(comm, with_messages, operation->announcements));
    }
    const CUstream stream = streams[0];
    operation->captured = capturing(stream);
    for (size_t i = 1; i < streams.size(); ++i) {
        order(streams[i], stream);
    }
    // Operations of one communicator run one after the other, whatever streams they are given.
    if (!operation->captured && comm.launched_before && comm.last_stream != stream) {
        cuda_check(cuStreamWaitEvent(stream, comm.last_event, 0), "cuStreamWaitEvent");
    }
    comm.launched(operation->captured);
    Operation* raw = operation.release();
    const bool captured = raw->captured;
    raw->begins_late = comm.ever_captured();
    if (!raw->begins_late) {
        raw->begin();
    }
    const std::string label = raw->label;
    const CUresult result =
        softdevStreamEnqueue(stream, label.c_str(), Operation::run, Operation::done, raw,
                             accesses.data(), accesses.size());
    if (result != CUDA_SUCCESS) {
        const char* text = cuda_text(result);
        comm.fail(ncclUnhandledCudaError,
                  format("%s was refused by the stream: %s", label.c_str(), text), false);
        throw Error(
            result == CUDA_ERROR_INVALID_VALUE ? ncclInvalidArgument : ncclUnhandledCudaError,
            format("%s: Cuda failure '%s'", label.c_str(), text));
    }
    if (!captured) {
        if (comm.last_event == nullptr) {
            cuda_check(cuEventCreate(&comm.last_event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        }
        cuda_check(cuEventRecord(comm.last_event, stream), "cuEventRecord");
        comm.last_stream = stream;
        comm.launched_before = true;
    }
    for (size_t i = 1; i < streams.size(); ++i) {
        order(stream, streams[i]);
    }
}

}  // namespace softdev::nccl
