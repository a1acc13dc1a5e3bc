// SPDX-License-Identifier: Apache-2.0
#include "planner/model/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/hash.h"

namespace deft::planner {
namespace {

class Fingerprint {
public:
    void add(std::uint64_t value) { hash_ = fnv64_mix(hash_, value); }
    void add(const std::string& text) {
        add(text.size());
        hash_ = fnv64(text.data(), text.size(), hash_);
    }
    void add(const Generation& generation) {
        add(static_cast<std::uint64_t>(static_cast<std::int64_t>(generation.first)));
        add(generation.count);
    }
    std::uint64_t value() const { return hash_; }

private:
    std::uint64_t hash_ = kFnv64Basis;
};

}  // namespace

bool Plan::complete_generations() const {
    std::uint64_t model = 0;
    for (const std::uint64_t bytes : bucket_bytes) {
        model += bytes;
    }
    std::map<std::pair<std::uint32_t, std::int32_t>, std::uint64_t> bytes_of;  // update, generation
    for (const Delivery& d : deliveries) {
        bytes_of[{d.iteration, d.generation.newest()}] += d.end - d.begin;
    }
    return std::all_of(bytes_of.begin(), bytes_of.end(),
                       [model](const auto& one) { return one.second == model; });
}

bool Plan::whole_updates() const {
    std::uint64_t model = 0;
    for (const std::uint64_t bytes : bucket_bytes) {
        model += bytes;
    }
    std::uint64_t update = 0;
    for (std::size_t i = 0; i < deliveries.size(); ++i) {  // by iteration, bucket, begin
        const Delivery& d = deliveries[i];
        const bool again = i > 0 && d.iteration == deliveries[i - 1].iteration &&
                           d.bucket == deliveries[i - 1].bucket &&
                           d.begin == deliveries[i - 1].begin;
        update += again ? 0 : d.end - d.begin;
        if (i + 1 == deliveries.size() || deliveries[i + 1].iteration != d.iteration) {
            if (update != model) {
                return false;
            }
            update = 0;
        }
    }
    return true;
}

std::uint64_t Plan::fingerprint() const {
    Fingerprint hash;
    hash.add(kVersion);
    hash.add(policy);
    hash.add(period);
    hash.add(static_cast<std::uint64_t>(barrier));
    hash.add(bucket_bytes.size());
    for (const std::uint64_t bytes : bucket_bytes) {
        hash.add(bytes);
    }
    hash.add(links.size());
    for (const std::string& link : links) {
        hash.add(link);
    }
    hash.add(transfers.size());
    for (const Transfer& t : transfers) {
        hash.add(t.bucket);
        hash.add(t.generation);
        hash.add(t.begin);
        hash.add(t.end);
        hash.add(t.link);
        hash.add(static_cast<std::uint64_t>(t.operation));
        hash.add(t.iteration);
        hash.add(static_cast<std::uint64_t>(t.stage));
        hash.add(t.order);
        hash.add(t.message);
    }
    hash.add(deliveries.size());
    for (const Delivery& d : deliveries) {
        hash.add(d.iteration);
        hash.add(d.bucket);
        hash.add(d.begin);
        hash.add(d.end);
        hash.add(d.generation);
    }
    return hash.value();
}

std::vector<Delivery> synchronous_deliveries(const Profile& profile) {
    std::vector<Delivery> deliveries;
    for (std::uint32_t i = 0; i < profile.size(); ++i) {
        deliveries.push_back({0, i, 0, profile.buckets[i].bytes, {0, 1}});
    }
    return deliveries;
}

const char* to_string(Operation operation) {
    switch (operation) {
        case Operation::AllReduce:
            return "all-reduce";
        case Operation::ReduceScatter:
            return "reduce-scatter";
        case Operation::AllGather:
            return "all-gather";
    }
    return "?";
}

const char* to_string(Stage stage) {
    switch (stage) {
        case Stage::Backward:
            return "backward";
        case Stage::Forward:
            return "forward";
    }
    return "?";
}

const char* to_string(Barrier barrier) {
    switch (barrier) {
        case Barrier::Update:
            return "update";
        case Barrier::Layer:
            return "layer";
    }
    return "?";
}

const char* to_string(Verdict verdict) {
    switch (verdict) {
        case Verdict::Keep:
            return "keep";
        case Verdict::Use:
            return "use";
        case Verdict::Unsafe:
            return "unsafe";
    }
    return "?";
}

}  // namespace deft::planner
