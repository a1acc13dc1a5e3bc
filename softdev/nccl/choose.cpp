// SPDX-License-Identifier: Apache-2.0
// Which algorithm, protocol and how many channels a collective gets. Every rank must come to the
// same answer, so only what is equal on all ranks may be used.
#include <strings.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/launch.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

size_t total_bytes(const Task& task) {
    const size_t own = task.count * type_size(task.type);
    const bool per_rank =
        task.function == Function::kAllGather || task.function == Function::kReduceScatter;
    return per_rank ? own * static_cast<size_t>(task.communicator->nranks) : own;
}

// The part of "allreduce:tree;broadcast:ring" that speaks of this function; a list without a
// function speaks of all.
std::string list_for(const char* variable, Function function) {
    const std::string text = env_text(variable).value_or("");
    std::string general;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(';', at), text.size());
        const std::string part = text.substr(at, end - at);
        const size_t colon = part.find(':');
        if (colon == std::string::npos) {
            general = part;
        } else if (strcasecmp(part.substr(0, colon).c_str(), function_name(function)) == 0) {
            return part.substr(colon + 1);
        }
        at = end + 1;
    }
    return general;
}

// "Tree,Ring" allows those named, "^Tree" all others, nothing allows all.
bool allowed(const std::string& list, const char* name) {
    if (list.empty()) {
        return true;
    }
    const bool exclude = list[0] == '^';
    for (size_t at = exclude ? 1 : 0; at <= list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        if (strcasecmp(list.substr(at, end - at).c_str(), name) == 0) {
            return !exclude;
        }
        at = end + 1;
    }
    return exclude;
}

// LL128 needs a path that keeps 128-byte lines whole, which NCCL cannot know of TCP: only when
// somebody names it.
bool named(const std::string& list, const char* name) {
    return !list.empty() && list[0] != '^' && allowed(list, name);
}

Protocol choose_protocol(const std::string& protocols, size_t bytes) {
    const bool ll = allowed(protocols, "LL");
    const bool ll128 = named(protocols, "LL128");
    const bool simple = allowed(protocols, "Simple");
    // Like NCCL over TCP: LL while latency rules, LL128 up to the middle, Simple for bandwidth.
    if (ll && ((!simple && !ll128) || bytes <= 64 << 10)) {
        return Protocol::kLL;
    }
    return ll128 && (!simple || bytes <= 1 << 20) ? Protocol::kLL128 : Protocol::kSimple;
}

// A further channel is worth it where each has that many bytes of the call: NCCL's threads of a
// channel times its threshold for each.
size_t bytes_for_a_channel(const Choice& choice, int nranks) {
    switch (choice.protocol) {
        case Protocol::kSimple:
            return 16 << 10;
        case Protocol::kLL:
            return (size_t{4} << 10) *
                   (choice.pattern == Pattern::kRing ? static_cast<size_t>(nranks) : 1);
        case Protocol::kLL128:
            return 5 << 10;
    }
    return 16 << 10;
}

int tuner_function(Function function) {
    switch (function) {
        case Function::kAllReduce:
            return DEFT_TUNER_ALL_REDUCE;
        case Function::kAllGather:
            return DEFT_TUNER_ALL_GATHER;
        case Function::kReduceScatter:
            return DEFT_TUNER_REDUCE_SCATTER;
        case Function::kReduce:
            return DEFT_TUNER_REDUCE;
        default:
            return DEFT_TUNER_BROADCAST;
    }
}

// What there is for the call, in NCCL's words. Only that the first is the least is meant by the
// costs; LL, which sends twice the bytes, is far from it where there are many.
void fill_costs(const Task& task, const Choice& own, net::TunerQuestion& question) {
    const std::string algorithms = list_for("NCCL_ALGO", task.function);
    const std::string protocols = list_for("NCCL_PROTO", task.function);
    constexpr size_t kManyBytes = 16 << 20;
    constexpr float kOwn = 10;
    constexpr float kOther = 20;
    constexpr float kFar = 100;
    const bool sum = task.function == Function::kAllReduce;
    for (auto& row : question.costs) {
        std::fill(std::begin(row), std::end(row), DEFT_TUNER_IGNORE);
    }
    const auto fill = [&](int algorithm, Pattern pattern) {
        const auto cost = [&](Protocol protocol, float other) {
            return pattern == own.pattern && protocol == own.protocol ? kOwn : other;
        };
        float* const row = question.costs[algorithm];
        if (allowed(protocols, "LL")) {
            row[DEFT_TUNER_LL] = cost(Protocol::kLL, question.bytes > kManyBytes ? kFar : kOther);
        }
        if (named(protocols, "LL128")) {
            row[DEFT_TUNER_LL128] = cost(Protocol::kLL128, kOther);
        }
        if (allowed(protocols, "Simple")) {
            row[DEFT_TUNER_SIMPLE] = cost(Protocol::kSimple, kOther);
        }
    };
    if (!sum || allowed(algorithms, "Ring")) {
        fill(DEFT_TUNER_RING, Pattern::kRing);
    }
    if (sum && allowed(algorithms, "Tree")) {
        fill(DEFT_TUNER_TREE, Pattern::kTree);
    }
}

// As NCCL takes the answer: the least that is left, and the channels where they are named.
void ask_tuner(const Task& task, size_t bytes, Choice& choice) {
    const Communicator& comm = *task.communicator;
    net::TunerQuestion question;
    question.function = tuner_function(task.function);
    question.bytes = bytes;
    fill_costs(task, choice, question);
    const int result = comm.tuner.ask(question);
    if (result != 0) {
        throw Error(static_cast<ncclResult_t>(result), "getCollInfo of the tuner failed");
    }
    float least = 0;
    bool any = false;
    for (const int algorithm : {DEFT_TUNER_TREE, DEFT_TUNER_RING}) {
        for (int protocol = 0; protocol < DEFT_TUNER_PROTOCOLS; ++protocol) {
            const float cost = question.costs[algorithm][protocol];
            if (cost < 0 || (any && cost >= least)) {
                continue;
            }
            any = true;
            least = cost;
            choice.pattern = algorithm == DEFT_TUNER_TREE ? Pattern::kTree : Pattern::kRing;
            choice.protocol = protocol == DEFT_TUNER_LL      ? Protocol::kLL
                              : protocol == DEFT_TUNER_LL128 ? Protocol::kLL128
                                                             : Protocol::kSimple;
        }
    }
    choice.channels = static_cast<int>(
        std::clamp<size_t>(bytes / bytes_for_a_channel(choice, comm.nranks), 1, comm.channels));
    if (question.channels > 0) {
        choice.channels = std::clamp(question.channels, 1, static_cast<int>(comm.channels));
    }
}

}  // namespace

Choice choose(const Task& task) {
    const size_t bytes = total_bytes(task);
    const std::string algorithms = list_for("NCCL_ALGO", task.function);
    const std::string protocols = list_for("NCCL_PROTO", task.function);
    if (!allowed(protocols, "LL") && !named(protocols, "LL128") && !allowed(protocols, "Simple")) {
        throw Error(ncclInvalidUsage, format("no protocol available for %s: NCCL_PROTO=%s",
                                             function_name(task.function), protocols.c_str()));
    }
    Choice choice;
    choice.protocol = choose_protocol(protocols, bytes);
    const int nranks = task.communicator->nranks;
    if (task.function == Function::kAllReduce) {
        // All other functions always have the ring, so that jobs run with NCCL_ALGO=Tree.
        const bool ring = allowed(algorithms, "Ring");
        const bool tree = allowed(algorithms, "Tree");
        if (!ring && !tree) {
            throw Error(ncclInvalidUsage,
                        format("no algorithm available for AllReduce: NCCL_ALGO=%s allows neither "
                               "Ring nor Tree, which are all there is here",
                               algorithms.c_str()));
        }
        if (tree && (!ring || (nranks > 2 && bytes <= 256 << 10))) {
            choice.pattern = Pattern::kTree;
        }
    }
    choice.channels = static_cast<int>(std::clamp<size_t>(
        bytes / bytes_for_a_channel(choice, nranks), 1, task.communicator->channels));
    if (task.communicator->tuner) {
        ask_tuner(task, bytes, choice);
    }
    constexpr const char* kProtocols[] = {"SIMPLE", "LL", "LL128"};
    log_info(kSubsysTuning, "%s: %zu Bytes -> Algo %s proto %s channels %d",
             function_name(task.function), bytes,
             choice.pattern == Pattern::kTree ? "TREE" : "RING",
             kProtocols[static_cast<int>(choice.protocol)], choice.channels);
    return choice;
}

}  // namespace softdev::nccl
