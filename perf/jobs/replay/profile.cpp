// SPDX-License-Identifier: Apache-2.0
#include "perf/jobs/replay/profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace replay {
namespace {

constexpr double kDay = 86400;                                // seconds
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;  // of all gradients together
constexpr std::size_t kMostBuckets = 100000;

using Json = nlohmann::json;

const Json& member(const Json& from, const std::string& at, const char* name) {
    if (!from.is_object() || !from.contains(name)) {
        throw InputError(at + ": " + name + " is missing");
    }
    return from[name];
}

double seconds(const Json& from, const std::string& at, const char* name) {
    const Json& value = member(from, at, name);
    if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() > kDay * 1e3) {
        throw InputError(at + ": " + name + " is no time in milliseconds");
    }
    return value.get<double>() / 1e3;
}

// The median of a distribution {"median", "n", ...}.
double median(const Json& from, const std::string& at, const char* name) {
    const Json& spread = member(from, at, name);
    if (spread.is_object() && spread.contains("median") && spread["median"].is_null()) {
        throw InputError(at + ": " + name + " was not measured");
    }
    return seconds(spread, at + ": " + name, "median");
}

std::uint64_t size_of(const Json& from, const std::string& at) {
    const Json& value = member(from, at, "bytes");
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 ||
        value.get<std::uint64_t>() > kMostBytes) {
        throw InputError(at + ": bytes is no size from 1 to 2^40");
    }
    return value.get<std::uint64_t>();
}

const Json& buckets_of(const Json& from, const std::string& at) {
    const Json& buckets = member(from, at, "buckets");
    if (!buckets.is_array() || buckets.empty() || buckets.size() > kMostBuckets) {
        throw InputError(at + ": buckets is no list of 1 to 100000 buckets");
    }
    return buckets;
}

Profile from_profile(const std::string& at, const Json& json) {
    Profile profile;
    const double forward = seconds(json, at, "forward_ms");
    profile.forward = forward;
    profile.compute = forward + seconds(json, at, "backward_ms");
    const Json& buckets = buckets_of(json, at);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        const std::string where = at + ": buckets[" + std::to_string(i) + "]";
        const bool layers = buckets[i].is_object() && buckets[i].contains("forward_ms");
        profile.buckets.push_back({size_of(buckets[i], where),
                                   forward + seconds(buckets[i], where, "ready_ms"),
                                   layers ? seconds(buckets[i], where, "forward_ms") : 0});
    }
    return profile;
}

Profile from_observe(const std::string& at, const Json& json) {
    Profile profile;
    const Json& buckets = buckets_of(json, at);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        const std::string where = at + ": buckets[" + std::to_string(i) + "]";
        // Medians of noisy times may cross; the job sent the buckets in this order all the same.
        const double before = profile.buckets.empty() ? 0 : profile.buckets.back().ready;
        profile.buckets.push_back({size_of(buckets[i], where),
                                   std::max(before, median(buckets[i], where, "ready_ms")), 0});
    }
    const Json& iterations = member(json, at, "iterations");
    profile.compute = std::max(profile.buckets.back().ready,
                               median(iterations, at + ": iterations", "compute_ms"));
    return profile;
}

void check(const std::string& name, const Profile& profile) {
    double before = 0;
    double owned = 0;  // of forward
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < profile.buckets.size(); ++i) {
        const Bucket& bucket = profile.buckets[i];
        const std::string where = name + ": buckets[" + std::to_string(i) + "]";
        if (bucket.ready < before || bucket.ready > profile.compute * (1 + 1e-9)) {
            throw InputError(where +
                             ": ready_ms is before the bucket in front of it or after the " +
                             "end of backward");
        }
        before = bucket.ready;
        bytes += bucket.bytes;
        owned += bucket.forward;
    }
    if (owned > profile.forward * (1 + 1e-9)) {
        throw InputError(name + ": the buckets' forward_ms exceed the profile's");
    }
    if (bytes > kMostBytes) {
        throw InputError(name + ": the buckets hold more than 2^40 bytes together");
    }
}

}  // namespace

std::uint64_t Profile::bytes() const {
    std::uint64_t sum = 0;
    for (const Bucket& bucket : buckets) {
        sum += bucket.bytes;
    }
    return sum;
}

Profile Profile::scaled(double time, double size) const {
    Profile other = *this;
    other.forward *= time;
    other.compute *= time;
    for (Bucket& bucket : other.buckets) {
        bucket.ready *= time;
        bucket.forward *= time;
        const double floats = std::round(static_cast<double>(bucket.bytes) * size / 4);
        bucket.bytes = 4 * static_cast<std::uint64_t>(std::max(1.0, floats));
    }
    return other;
}

Profile profile_from_text(const std::string& name, const std::string& text) {
    // Of a file with the records of a host's ranks, the lowest rank's.
    const bool record = text.starts_with(R"({"format":"deft-observe")");
    const Json json = Json::parse(record ? text.substr(0, text.find('\n')) : text, nullptr, false);
    if (json.is_discarded() || !json.is_object()) {
        throw InputError(name + ": not a JSON object");
    }
    const Json& format = member(json, name, "format");
    Profile profile;
    if (format == "deft-profile") {
        profile = from_profile(name, json);
    } else if (format == "deft-sim") {
        profile = from_profile(name + ": profile", member(json, name, "profile"));
    } else if (format == "deft-observe") {
        profile = from_observe(name, json);
    } else {
        throw InputError(name + ": format is " + format.dump() +
                         ", none of deft-profile, deft-sim, deft-observe");
    }
    profile.name =
        json.contains("name") && json["name"].is_string() ? json["name"].get<std::string>() : name;
    check(name, profile);
    return profile;
}

std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw InputError(path + ": cannot be read");
    }
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (file.bad()) {
        throw InputError(path + ": cannot be read");
    }
    return text;
}

Profile read_profile(const std::string& path) {
    return profile_from_text(path, read_text(path));
}

}  // namespace replay
