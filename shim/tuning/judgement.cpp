// SPDX-License-Identifier: Apache-2.0
#include "shim/tuning/judgement.h"

#include <algorithm>

#include "base/bytes.h"

namespace deft::tuning {
namespace {

constexpr std::uint32_t kMagic = 0x4d54'5444;  // "DTTM"

// Whose order of addition is nobody's concern: nothing is added, or two numbers are, or integers.
// An operation of the job's own multiplies first. Multiplied and added at once, two numbers may
// give another sum than the other way round.
bool order_free(const Key& key, int nranks) {
    const bool integers = key.type <= DEFT_NCCL_UINT64;
    const bool two = nranks == 2 && key.op < DEFT_NCCL_NUM_OPS;
    return key.function == Function::AllGather || two || integers;
}

// In a ring an element's place among the chunks says where its sum begins, and chunks move with the
// protocol and the number of channels.
bool may_change(const Key& key, const Freedom& freedom) {
    return freedom.reorder || order_free(key, freedom.nranks);
}

// Algorithms may change how often a number is rounded. NCCL itself takes no ring for sums of 8-bit
// floats of many ranks, for it rounds once for each rank, where a tree does for each of its levels.
bool accurate(const Key& key, int nranks, const CollectiveChoice& own, int algorithm) {
    constexpr int kManyRanks = 8;
    if (order_free(key, nranks) || algorithm == own.algorithm || element_size(key.type) >= 4) {
        return true;
    }
    const bool more_rounding = algorithm == DEFT_TUNER_RING && nranks > kManyRanks;
    return element_size(key.type) == 2 && !more_rounding;
}

}  // namespace

bool ordinary(int algorithm) {
    return algorithm == DEFT_TUNER_TREE || algorithm == DEFT_TUNER_RING ||
           algorithm == DEFT_TUNER_PAT;
}

std::vector<CollectiveChoice> ways(const JobCalls::Repeated& call, const Freedom& freedom) {
    const CollectiveOffer& offer = call.offer;
    std::vector<CollectiveChoice> ways{{}};
    if (!ordinary(offer.own.algorithm) || !may_change(call.key, freedom)) {
        return ways;
    }
    for (int algorithm = 0; algorithm < DEFT_TUNER_ALGORITHMS; ++algorithm) {
        if (!ordinary(algorithm) || (!freedom.algorithms && algorithm != offer.own.algorithm) ||
            !accurate(call.key, freedom.nranks, offer.own, algorithm)) {
            continue;
        }
        for (int protocol = 0; protocol < DEFT_TUNER_PROTOCOLS; ++protocol) {
            const CollectiveChoice way{static_cast<std::int8_t>(algorithm),
                                       static_cast<std::int8_t>(protocol), 0};
            const std::uint32_t bit = CollectiveOffer::bit_of(algorithm, protocol);
            if ((offer.available & offer.worth & bit) != 0 && way != offer.own) {
                ways.push_back(way);
            }
        }
    }
    return ways;
}

std::vector<CollectiveChoice> narrower(const Key& key, const CollectiveChoice& choice,
                                       const CollectiveChoice& own, const Freedom& freedom) {
    std::vector<CollectiveChoice> narrower{choice};
    if (freedom.channels && ordinary(own.algorithm) && may_change(key, freedom)) {
        for (const std::uint8_t channels : {4, 2, 1}) {
            narrower.push_back({choice.algorithm, choice.protocol, channels});
        }
    }
    return narrower;
}

std::vector<std::byte> encode(std::uint64_t serial, const Times& times) {
    ByteString out;
    out.put(kMagic);
    out.put(serial);
    out.put(static_cast<std::uint8_t>(times.size()));
    for (const std::vector<std::uint64_t>& entry : times) {
        out.put(static_cast<std::uint16_t>(entry.size()));
        for (const std::uint64_t time : entry) {
            out.put(time);
        }
    }
    return out.take();
}

bool decode(std::span<const std::byte> bytes, std::uint64_t& serial, Times& times) {
    ByteReader in(bytes);
    const bool known = in.get<std::uint32_t>() == kMagic;
    serial = in.get<std::uint64_t>();
    const std::size_t entries = in.get<std::uint8_t>();
    if (!known || !in.ok() || entries > kMostEntries) {
        return false;
    }
    times.resize(entries);
    for (std::vector<std::uint64_t>& entry : times) {
        const std::size_t samples = in.get<std::uint16_t>();
        if (!in.ok() || samples > kMostRounds * kMostCandidates) {
            return false;
        }
        entry.resize(samples);
        for (std::uint64_t& time : entry) {
            time = in.get<std::uint64_t>();
        }
    }
    return in.ok() && in.left() == 0;
}

Times least(const std::vector<Times>& of_ranks) {
    Times least = of_ranks.empty() ? Times{} : of_ranks.front();
    for (const Times& times : of_ranks) {
        for (std::size_t e = 0; e < std::min(least.size(), times.size()); ++e) {
            for (std::size_t i = 0; i < std::min(least[e].size(), times[e].size()); ++i) {
                const std::uint64_t time = times[e][i];
                // A rank that has missed one does not know who came last.
                least[e][i] = std::min(least[e][i], time);
            }
        }
    }
    return least;
}

// Each window against the one before and the one behind it, so that a drift does not count.
std::vector<double> ratios_of(const std::vector<std::int64_t>& begins) {
    if (begins.size() != kWindows + 1 ||
        std::find(begins.begin(), begins.end(), 0) != begins.end()) {
        return {};
    }
    std::vector<double> ratios;
    for (std::size_t i = 1; i + 1 < kWindows; i += 2) {
        const auto length = [&begins](std::size_t window) {
            return static_cast<double>(begins[window + 1] - begins[window]);
        };
        const double without = (length(i - 1) + length(i + 1)) / 2;
        if (without <= 0) {
            return {};
        }
        ratios.push_back(length(i) / without);
    }
    return ratios;
}

double median_of(std::vector<double> ratios) {
    const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    return *middle;
}

bool clear(const std::vector<double>& ratios, double most) {
    const auto above = static_cast<std::size_t>(
        std::count_if(ratios.begin(), ratios.end(), [most](double ratio) { return ratio > most; }));
    return ratios.size() > kWindows / 2 || above == 0 || above == ratios.size();
}

}  // namespace deft::tuning
