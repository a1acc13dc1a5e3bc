// SPDX-License-Identifier: Apache-2.0
#include "shim/tuning/table.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"

namespace deft::tuning {
namespace {

constexpr std::uint32_t kMagic = 0x334e'5544;  // "DUN3"

const char* type_name(int type) {
    constexpr std::array kNames = {"int8",    "uint8",    "int32",   "uint32",
                                   "int64",   "uint64",   "float16", "float32",
                                   "float64", "bfloat16", "fp8e4m3", "fp8e5m2"};
    return type >= 0 && static_cast<std::size_t>(type) < kNames.size()
               ? kNames[static_cast<std::size_t>(type)]
               : "values";
}

bool sane(const CollectiveChoice& choice) {
    const bool neither =
        choice.algorithm == DEFT_TUNER_UNDEF && choice.protocol == DEFT_TUNER_UNDEF;
    return neither || (choice.algorithm >= 0 && choice.algorithm < DEFT_TUNER_ALGORITHMS &&
                       choice.protocol >= 0 && choice.protocol < DEFT_TUNER_PROTOCOLS);
}

bool sane(const Order& order) {
    const bool ends = order.phase == Phase::Trial || order.phase == Phase::Compare;
    const bool phase = order.phase == Phase::Fixed || (ends && order.window_calls > 0);
    const bool rounds =
        order.phase != Phase::Trial || (order.rounds > 0 && order.rounds <= kMostRounds);
    return phase && rounds &&
           std::all_of(order.entries.begin(), order.entries.end(), [&](const Entry& e) {
               return may_tune(e.key.function) &&
                      e.candidates.size() >= (order.phase == Phase::Compare ? 2u : 1u) &&
                      std::all_of(e.candidates.begin(), e.candidates.end(),
                                  [](const CollectiveChoice& c) { return sane(c); });
           });
}

bool read_entry(ByteReader& in, Entry& entry) {
    entry.key.function = static_cast<Function>(in.get<std::uint8_t>());
    entry.key.type = in.get<std::uint8_t>();
    entry.key.op = in.get<std::int32_t>();
    entry.key.count = in.get<std::uint64_t>();
    const std::size_t candidates = in.get<std::uint8_t>();
    if (!in.ok() || candidates > kMostCandidates) {
        return false;
    }
    entry.candidates.resize(candidates);
    for (CollectiveChoice& choice : entry.candidates) {
        choice.algorithm = in.get<std::int8_t>();
        choice.protocol = in.get<std::int8_t>();
        choice.channels = in.get<std::uint8_t>();
    }
    return in.ok();
}

}  // namespace

Key key_of(Function function, std::size_t count, int type, int op) {
    return {function, static_cast<std::uint8_t>(type), std::min<int>(op, DEFT_NCCL_NUM_OPS), count};
}

bool may_tune(Function function) {
    return function == Function::AllReduce || function == Function::ReduceScatter ||
           function == Function::AllGather;
}

std::uint64_t bytes_of(const Key& key, int nranks) {
    const std::uint64_t own = key.count * element_size(key.type);
    return key.function == Function::AllReduce ? own : own * static_cast<std::uint64_t>(nranks);
}

std::string to_text(const Key& key) {
    return std::string(function_name(key.function)) + " of " + std::to_string(key.count) + " " +
           type_name(key.type);
}

std::string to_text(const CollectiveChoice& choice) {
    constexpr std::array kAlgorithms = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                        "NVLSTree", "PAT"};
    constexpr std::array kProtocols = {"LL", "LL128", "Simple"};
    std::string text = "NCCL's own choice";
    if (choice.algorithm >= 0 && choice.protocol >= 0) {
        text = std::string(kAlgorithms.at(static_cast<std::size_t>(choice.algorithm))) + "/" +
               kProtocols.at(static_cast<std::size_t>(choice.protocol));
    }
    if (choice.channels != 0) {
        text += " on " + std::to_string(choice.channels) +
                (choice.channels == 1 ? " channel" : " channels");
    }
    return text;
}

std::vector<std::byte> encode(const Order& order) {
    ByteString out;
    out.put(kMagic);
    out.put(order.phase);
    out.put(order.start);
    out.put(order.window_calls);
    out.put(order.rounds);
    out.put(order.mark);
    out.put(order.history);
    out.put(static_cast<std::uint8_t>(order.entries.size()));
    for (const Entry& entry : order.entries) {
        out.put(entry.key.function);
        out.put(entry.key.type);
        out.put(entry.key.op);
        out.put(entry.key.count);
        out.put(static_cast<std::uint8_t>(entry.candidates.size()));
        for (const CollectiveChoice& choice : entry.candidates) {
            out.put(choice.algorithm);
            out.put(choice.protocol);
            out.put(choice.channels);
        }
    }
    return out.take();
}

bool decode(std::span<const std::byte> bytes, Order& order) {
    ByteReader in(bytes);
    const bool known = in.get<std::uint32_t>() == kMagic;
    order.phase = static_cast<Phase>(in.get<std::uint8_t>());
    order.start = in.get<std::uint64_t>();
    order.window_calls = in.get<std::uint64_t>();
    order.rounds = in.get<std::uint8_t>();
    order.mark = in.get<std::uint64_t>();
    order.history = in.get<std::uint64_t>();
    const std::size_t entries = in.get<std::uint8_t>();
    if (!known || !in.ok() || entries > kMostEntries) {
        return false;
    }
    order.entries.resize(entries);
    for (Entry& entry : order.entries) {
        if (!read_entry(in, entry)) {
            return false;
        }
    }
    return in.left() == 0 && sane(order);
}

// What has not been compared yet holds no longer than its trial: the next order may never come.
// Nor does it when the job makes some of the calls much later.
void Table::try_next(std::size_t entry, std::uint64_t ordinal, Pick& pick) noexcept {
    const Entry& tried = order_.entries[entry];
    pick.choice = {};
    if (seen_[entry] < samples_of(order_, tried) && ordinal - order_.start <= calls_of(order_)) {
        const std::uint32_t sample = seen_[entry]++;
        pick.sample = static_cast<std::int32_t>(sample);
        pick.choice = tried.candidates[candidate_of(sample, tried.candidates.size())];
    }
}

Pick Table::pick(const Key& key, std::uint64_t ordinal) noexcept {
    const auto found = std::find_if(order_.entries.begin(), order_.entries.end(),
                                    [&key](const Entry& entry) { return entry.key == key; });
    if (found == order_.entries.end()) {
        return {};
    }
    const auto at = static_cast<std::size_t>(found - order_.entries.begin());
    Pick pick{found->candidates.front(), order_.serial, static_cast<std::int32_t>(at), -1};
    switch (order_.phase) {
        case Phase::Fixed:
            break;
        case Phase::Trial:
            if (found->candidates.size() > 1) {
                try_next(at, ordinal, pick);
            }
            break;
        case Phase::Compare: {
            const std::uint64_t window = (ordinal - order_.start) / order_.window_calls;
            if (window < kWindows && window % 2 == 1) {
                pick.choice = found->candidates[1];
            }
            break;
        }
    }
    return pick;
}

}  // namespace deft::tuning
