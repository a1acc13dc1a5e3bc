// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/call_check.h"

#include <cstring>

#include "softdev/nccl/error.h"
#include "softdev/nccl/reduce.h"

namespace softdev::nccl {
namespace {

std::string bytes_of(const CallHeader& call) {
    return std::string(reinterpret_cast<const char*>(&call), sizeof call);
}

bool read_call(const std::string& payload, CallHeader& call) {
    if (payload.size() != sizeof call) {
        return false;
    }
    std::memcpy(&call, payload.data(), sizeof call);
    return true;
}

}  // namespace

const char* function_name(Function function) {
    switch (function) {
        case Function::kAllReduce:
            return "AllReduce";
        case Function::kReduce:
            return "Reduce";
        case Function::kBroadcast:
            return "Broadcast";
        case Function::kAllGather:
            return "AllGather";
        case Function::kReduceScatter:
            return "ReduceScatter";
        case Function::kAlltoAll:
            return "AlltoAll";
        case Function::kGather:
            return "Gather";
        case Function::kScatter:
            return "Scatter";
        case Function::kSend:
            return "Send";
        case Function::kRecv:
            return "Recv";
    }
    return "unknown function";
}

std::string CallHeader::text() const {
    std::string out = format("%s(count=%llu, %s", function_name(static_cast<Function>(function)),
                             static_cast<unsigned long long>(count),
                             type_name(static_cast<ncclDataType_t>(type)));
    if (op >= 0) {
        out += format(", %s", op_name(op));
    }
    if (root >= 0) {
        out += format(", root=%d", root);
    }
    return out + ")";
}

bool CallHeader::fits(const CallHeader& other) const {
    return count == other.count && type == other.type && op == other.op && root == other.root &&
           function == other.function;
}

CallCheck::CallCheck(int rank, int nranks, Control* control, Mismatch mismatch)
    : rank_(rank), nranks_(nranks), control_(control), mismatch_(std::move(mismatch)) {}

uint64_t CallCheck::calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
}

std::string CallCheck::last_call() const {
    std::lock_guard lock(mutex_);
    return entering_.empty() ? last_ : last_ + ", now in " + entering_;
}

void CallCheck::entering(const std::string& calls) {
    std::lock_guard lock(mutex_);
    entering_ = calls;
}

void CallCheck::collective(const CallHeader& call) {
    const int previous = (rank_ + nranks_ - 1) % nranks_;
    {
        std::lock_guard lock(mutex_);
        calls_ = call.number;
        last_ = format("call %llu ", static_cast<unsigned long long>(call.number)) + call.text();
    }
    if (nranks_ == 1) {
        return;
    }
    control_->send((rank_ + 1) % nranks_, Letter::kCall, call.number, bytes_of(call));
    compare(mine_, theirs_, previous, call, true);
}

void CallCheck::send(int peer, const CallHeader& call) {
    if (peer != rank_) {
        control_->send(peer, Letter::kSend, call.number, bytes_of(call));
    }
}

void CallCheck::receive(int peer, const CallHeader& call) {
    if (peer != rank_) {
        compare(receives_, sends_, peer, call, true);
    }
}

void CallCheck::letter(int peer, Letter type, const std::string& payload) {
    if (type == Letter::kMismatch) {
        mismatch_(payload);
        return;
    }
    CallHeader call{};
    if (!read_call(payload, call)) {
        return;
    }
    if (type == Letter::kCall) {
        compare(theirs_, mine_, peer, call, false);
    } else if (type == Letter::kSend) {
        compare(sends_, receives_, peer, call, false);
    }
}

void CallCheck::compare(std::map<Key, CallHeader>& here, std::map<Key, CallHeader>& waiting,
                        int peer, const CallHeader& call, bool mine) {
    CallHeader other{};
    {
        std::lock_guard lock(mutex_);
        const Key key{peer, call.number};
        const auto found = waiting.find(key);
        if (found == waiting.end()) {
            here[key] = call;
            return;
        }
        other = found->second;
        waiting.erase(found);
    }
    if (!call.fits(other)) {
        report(peer, mine ? call : other, mine ? other : call);
    }
}

void CallCheck::report(int peer, const CallHeader& mine, const CallHeader& theirs) {
    const auto number = static_cast<unsigned long long>(mine.number);
    const char* what = mine.function == static_cast<int32_t>(Function::kSend) ? "message" : "call";
    const std::string text =
        format("calls do not match: %s %llu is %s on rank %d and %s on rank %d", what, number,
               mine.text().c_str(), rank_, theirs.text().c_str(), peer);
    control_->send(peer, Letter::kMismatch, mine.number, text);
    mismatch_(text);
}

}  // namespace softdev::nccl
