// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/message.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>

#include "softdev/nccl/error.h"

namespace softdev::nccl {

bool is_message(const Task& task) {
    switch (task.function) {
        case Function::kAlltoAll:
        case Function::kGather:
        case Function::kScatter:
        case Function::kSend:
        case Function::kRecv:
            return true;
        default:
            return false;
    }
}

std::vector<Message> messages_of(const Task& task) {
    const auto* from = static_cast<const std::byte*>(task.send);
    auto* to = static_cast<std::byte*>(task.receive);
    const size_t bytes = task.count * type_size(task.type);
    const Communicator& comm = *task.communicator;
    std::vector<Message> messages;
    // An empty collective is dropped, an empty send is not: NCCL's rule.
    if (bytes == 0 && task.function != Function::kSend && task.function != Function::kRecv) {
        return messages;
    }
    switch (task.function) {
        case Function::kSend:
            messages.push_back({task.root, true, from, nullptr, bytes});
            break;
        case Function::kRecv:
            messages.push_back({task.root, false, nullptr, to, bytes});
            break;
        case Function::kAlltoAll:
            for (int peer = 0; peer < comm.nranks; ++peer) {
                messages.push_back({peer, true, from + peer * bytes, nullptr, bytes});
                messages.push_back({peer, false, nullptr, to + peer * bytes, bytes});
            }
            break;
        case Function::kGather:
            messages.push_back({task.root, true, from, nullptr, bytes});
            for (int peer = 0; peer < comm.nranks && comm.rank == task.root; ++peer) {
                messages.push_back({peer, false, nullptr, to + peer * bytes, bytes});
            }
            break;
        case Function::kScatter:
            for (int peer = 0; peer < comm.nranks && comm.rank == task.root; ++peer) {
                messages.push_back({peer, true, from + peer * bytes, nullptr, bytes});
            }
            messages.push_back({task.root, false, nullptr, to, bytes});
            break;
        default:
            break;
    }
    return messages;
}

namespace {

constexpr size_t kPartUnit = 4096;  // bytes

// How many connections to its peer carry a message; equal on both sides. NCCL's rule: so few that a
// message to each rank finds room, and twice as many while a part is more than one chunk.
int message_channels(const Communicator& comm, size_t bytes) {
    const size_t chunk = BufferSizes::process().p2p_chunk;
    const auto all = static_cast<int>(std::bit_ceil(static_cast<unsigned>(comm.channels)));
    int channels = comm.p2p_channels;
    while (channels > 1 && channels * comm.nranks > all) {
        channels /= 2;
    }
    channels = static_cast<int>(std::clamp<size_t>((bytes + chunk / 2 - 1) / (chunk / 2), 1,
                                                   static_cast<size_t>(channels)));
    while (bytes > chunk * static_cast<size_t>(channels) && channels <= comm.p2p_channels / 2) {
        channels *= 2;
    }
    return channels;
}

using Programs = std::map<std::tuple<int, bool, int>, Program>;  // peer, sending, channel

// Long messages are cut over the channels of the peer, each piece into chunks; an empty one is one
// empty chunk.
void add_message(Communicator& comm, const Message& message, Programs& programs) {
    const int channels = message_channels(comm, message.bytes);
    for (int index = 0; index < channels; ++index) {
        const Part part = channel_part(message.bytes, kPartUnit, index, channels);
        const int channel = comm.message_channel(message.peer, message.sending, index);
        Program& program = programs[{message.peer, message.sending, channel}];
        program.shape.op = message.sending ? NetOp::kSend : NetOp::kRecv;
        program.shape.flows = std::max(program.shape.flows, static_cast<unsigned>(channels));
        Connection* connection =
            comm.connection(Pattern::kP2p, channel, message.peer, message.sending);
        (message.sending ? program.send : program.receive) = {connection};
        const size_t chunk = connection->capacity(program.shape);
        const size_t end = part.offset + part.count;
        size_t at = part.offset;
        do {
            const size_t n = std::min(chunk, end - at);
            program.steps.push_back(
                {message.sending ? message.from + at : nullptr,
                 message.sending ? nullptr : message.to + at, n,
                 static_cast<uint8_t>(message.sending ? Step::kSource | Step::kSend
                                                      : Step::kReceive | Step::kResult)});
            at += n;
        } while (at < end);
    }
}

}  // namespace

Work message_work(Communicator& comm, const std::vector<Task>& tasks,
                  std::vector<Operation::Announcement>& announcements) {
    Work work;
    work.reduction.type = ncclUint8;
    Programs programs;
    std::vector<Message> own_sends;
    std::vector<Message> own_receives;
    for (const Task& task : tasks) {
        for (const Message& message : messages_of(task)) {
            if (task.function == Function::kSend || task.function == Function::kRecv) {
                CallHeader call{};
                call.count = task.count;
                call.type = task.type;
                call.op = -1;
                call.root = -1;
                call.function = static_cast<int32_t>(task.function);
                announcements.push_back({call, message.peer});
            }
            if (message.peer == comm.rank) {
                (message.sending ? own_sends : own_receives).push_back(message);
                continue;
            }
            add_message(comm, message, programs);
        }
    }
    if (own_sends.size() != own_receives.size()) {
        throw Error(ncclInvalidUsage,
                    format("%s: ncclSend, ncclRecv: a rank's sends to itself (%zu) and receives "
                           "from itself (%zu) in one group do not pair",
                           comm.name().c_str(), own_sends.size(), own_receives.size()));
    }
    for (size_t i = 0; i < own_sends.size(); ++i) {
        if (own_sends[i].bytes != own_receives[i].bytes) {
            throw Error(ncclInvalidUsage,
                        format("%s: ncclSend of %zu bytes to itself meets an ncclRecv of %zu",
                               comm.name().c_str(), own_sends[i].bytes, own_receives[i].bytes));
        }
        if (own_sends[i].from != own_receives[i].to) {
            Program program;
            program.steps.push_back({own_sends[i].from, own_receives[i].to, own_sends[i].bytes,
                                     Step::kSource | Step::kResult});
            work.programs.push_back(std::move(program));
        }
    }
    std::set<int> peers[2];
    for (const auto& [key, program] : programs) {
        peers[std::get<1>(key)].insert(std::get<0>(key));
    }
    for (auto& [key, program] : programs) {
        program.shape.peers = static_cast<unsigned>(peers[std::get<1>(key)].size());
        work.programs.push_back(std::move(program));
    }
    return work;
}

}  // namespace softdev::nccl
