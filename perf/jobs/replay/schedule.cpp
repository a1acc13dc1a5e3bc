// SPDX-License-Identifier: Apache-2.0
#include "perf/jobs/replay/schedule.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace replay {
namespace {

using Json = nlohmann::json;

std::uint64_t whole(const Json& from, const std::string& at, const char* name) {
    if (!from.is_object() || !from.contains(name) || !from[name].is_number_unsigned()) {
        throw InputError(at + ": " + name + " is missing or no whole number");
    }
    return from[name].get<std::uint64_t>();
}

// Where byte `at` of a bucket of `from` bytes lies when it has `to` bytes: at a float's start.
std::uint64_t moved(std::uint64_t at, std::uint64_t from, std::uint64_t to) {
    if (at >= from) {
        return to;
    }
    const double share = static_cast<double>(at) / static_cast<double>(from);
    return static_cast<std::uint64_t>(share * static_cast<double>(to)) / 4 * 4;
}

// Every byte once: the pieces of each bucket, by their begins, follow one another.
void check_cover(const std::string& name, std::vector<Piece> pieces, const Profile& profile) {
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
        return a.bucket != b.bucket ? a.bucket < b.bucket : a.begin < b.begin;
    });
    std::vector<std::uint64_t> covered(profile.buckets.size(), 0);
    for (const Piece& piece : pieces) {
        if (piece.begin != covered[piece.bucket]) {
            throw InputError(name + ": bytes of bucket " + std::to_string(piece.bucket) +
                             " are sent twice or never");
        }
        covered[piece.bucket] = piece.end;
    }
    for (std::size_t i = 0; i < covered.size(); ++i) {
        if (covered[i] != profile.buckets[i].bytes) {
            throw InputError(name + ": bytes of bucket " + std::to_string(i) +
                             " are sent twice or never");
        }
    }
}

}  // namespace

std::vector<Piece> schedule_from_text(const std::string& name, const std::string& text,
                                      const Profile& scaled) {
    const Json json = Json::parse(text, nullptr, false);
    if (json.is_discarded() || !json.is_object() || json.value("format", Json()) != "deft-plan") {
        throw InputError(name + ": no plan; deft plan --out FILE writes one");
    }
    if (whole(json, name, "period") != 1) {
        throw InputError(name + ": period is not 1: only schedules without delay or merging");
    }
    const Json sizes = json.value("bucket_bytes", Json::array());
    if (!sizes.is_array() || sizes.size() != scaled.buckets.size()) {
        throw InputError(name + ": made for another profile: " + std::to_string(sizes.size()) +
                         " buckets, not " + std::to_string(scaled.buckets.size()));
    }
    std::vector<std::pair<std::uint64_t, Piece>> ordered;
    const Json transfers = json.value("transfers", Json::array());
    for (std::size_t i = 0; i < transfers.size(); ++i) {
        const std::string at = name + ": transfers[" + std::to_string(i) + "]";
        const Json& from = transfers[i];
        Piece piece;
        piece.bucket = whole(from, at, "bucket");
        if (piece.bucket >= sizes.size() || !sizes[piece.bucket].is_number_unsigned()) {
            throw InputError(at + ": there is no such bucket");
        }
        if (whole(from, at, "link") != 0 || from.value("operation", "") != "all-reduce") {
            throw InputError(at + ": not an all-reduce on the first link");
        }
        const auto bytes = sizes[piece.bucket].get<std::uint64_t>();
        const std::uint64_t size = scaled.buckets[piece.bucket].bytes;
        piece.begin = moved(whole(from, at, "begin"), bytes, size);
        piece.end = moved(whole(from, at, "end"), bytes, size);
        piece.message = whole(from, at, "message");
        if (piece.end > piece.begin) {  // scaled down, small pieces may vanish
            ordered.emplace_back(whole(from, at, "order"), piece);
        }
    }
    std::stable_sort(ordered.begin(), ordered.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Piece> pieces;
    for (const auto& [order, piece] : ordered) {
        pieces.push_back(piece);
    }
    check_cover(name, pieces, scaled);
    return pieces;
}

std::vector<Piece> read_schedule(const std::string& path, const Profile& scaled) {
    return schedule_from_text(path, read_text(path), scaled);
}

}  // namespace replay
