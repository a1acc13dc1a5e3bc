// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/history.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "softdev/cuda/report.h"

namespace softdev {
namespace {

struct Epoch {
    std::uint64_t count = 0;  ///< 0: none
    std::uint64_t stream = 0;
    std::uint32_t slot = 0;
    std::uint32_t label = 0;
};

struct Cell {
    std::uintptr_t end = 0;
    Epoch write;
    std::vector<Epoch> reads;
};

// Beyond this many runs the oldest knowledge is not worth its memory: all of it is dropped.
constexpr std::size_t kMaxCells = 1 << 16;
constexpr std::size_t kMaxLabels = 1 << 12;

struct History {
    std::map<std::uintptr_t, Cell> cells;
    std::size_t prune_at = 1024;
    std::unordered_map<std::string, std::uint32_t> numbers;
    std::vector<std::string> labels{"an earlier operation"};
};

History& history() {
    static History* const value = new History;
    return *value;
}

std::uint32_t number_of(const std::string& label) {
    History& h = history();
    const auto found = h.numbers.find(label);
    if (found != h.numbers.end()) {
        return found->second;
    }
    if (h.labels.size() >= kMaxLabels) {
        return 0;
    }
    h.labels.push_back(label);
    return h.numbers[label] = static_cast<std::uint32_t>(h.labels.size() - 1);
}

bool ordered(const Epoch& epoch, const VectorClock& clock) {
    return clock.at(epoch.slot) >= epoch.count;
}

bool over(const Cell& cell) {
    const VectorClock& seen = device().host_clock;
    return ordered(cell.write, seen) &&
           std::all_of(cell.reads.begin(), cell.reads.end(),
                       [&](const Epoch& read) { return ordered(read, seen); });
}

void prune() {
    auto& cells = history().cells;
    if (cells.size() < history().prune_at) {
        return;
    }
    std::erase_if(cells, [](const auto& entry) { return over(entry.second); });
    if (cells.size() > kMaxCells) {
        cells.clear();
    }
    history().prune_at = std::max<std::size_t>(1024, 2 * cells.size());
}

// The first cell that reaches beyond the address.
std::map<std::uintptr_t, Cell>::iterator cell_at(std::uintptr_t address) {
    auto& cells = history().cells;
    auto it = cells.upper_bound(address);
    if (it != cells.begin() && std::prev(it)->second.end > address) {
        --it;
    }
    return it;
}

// Makes the address a border between cells.
void split(std::uintptr_t address) {
    const auto it = cell_at(address);
    if (it == history().cells.end() || it->first >= address) {
        return;
    }
    Cell upper = it->second;
    it->second.end = address;
    history().cells.emplace(address, std::move(upper));
}

void note_read(std::uintptr_t begin, std::uintptr_t end, const Epoch& epoch,
               const VectorClock& clock) {
    auto& cells = history().cells;
    std::uintptr_t at = begin;
    for (auto it = cells.lower_bound(begin); at < end; ++it) {
        if (it == cells.end() || it->first > at) {
            const std::uintptr_t gap = it == cells.end() ? end : std::min(end, it->first);
            it = cells.emplace_hint(it, at, Cell{gap, {}, {}});
        }
        // A read that this one follows needs no place: what conflicts with it and follows this one
        // follows it too.
        std::erase_if(it->second.reads, [&](const Epoch& read) { return ordered(read, clock); });
        it->second.reads.push_back(epoch);
        at = it->second.end;
    }
}

}  // namespace

CUresult check_history(const Stream& stream, const std::string& label, Accesses accesses) {
    if (!strict() || stream.untracked) {
        return CUDA_SUCCESS;
    }
    for (std::size_t i = 0; i < accesses.count; ++i) {
        const softdev_access_t& access = accesses.list[i];
        const auto begin = reinterpret_cast<std::uintptr_t>(access.ptr);
        const std::uintptr_t end = begin + access.bytes;
        for (auto it = cell_at(begin); it != history().cells.end() && it->first < end; ++it) {
            const Epoch* conflict =
                ordered(it->second.write, stream.clock) ? nullptr : &it->second.write;
            const char* verb = "writes";
            if (conflict == nullptr && access.write != 0) {
                for (const Epoch& read : it->second.reads) {
                    if (!ordered(read, stream.clock)) {
                        conflict = &read;
                        verb = "reads";
                    }
                }
            }
            if (conflict != nullptr) {
                report(
                    "%s on %s %s %zu bytes at %p, but %s on stream %llu, which %s %p, is not "
                    "ordered before it: an event or a synchronisation is missing",
                    label.c_str(), stream.name().c_str(), access.write != 0 ? "writes" : "reads",
                    access.bytes, access.ptr, history().labels[conflict->label].c_str(),
                    static_cast<unsigned long long>(conflict->stream), verb,
                    reinterpret_cast<void*>(std::max(begin, it->first)));
                return CUDA_ERROR_ILLEGAL_STATE;
            }
        }
    }
    return CUDA_SUCCESS;
}

void note_history(const Stream& stream, const std::string& label, Accesses accesses) {
    if (!strict() || stream.untracked || accesses.count == 0) {
        return;
    }
    prune();
    const Epoch epoch{stream.clock.at(stream.slot), stream.id,
                      static_cast<std::uint32_t>(stream.slot), number_of(label)};
    for (std::size_t i = 0; i < accesses.count; ++i) {
        const softdev_access_t& access = accesses.list[i];
        if (access.bytes == 0) {
            continue;
        }
        const auto begin = reinterpret_cast<std::uintptr_t>(access.ptr);
        const std::uintptr_t end = begin + access.bytes;
        split(begin);
        split(end);
        if (access.write == 0) {
            note_read(begin, end, epoch, stream.clock);
            continue;
        }
        auto& cells = history().cells;
        cells.erase(cells.lower_bound(begin), cells.lower_bound(end));
        cells.emplace(begin, Cell{end, epoch, {}});
    }
}

void forget_history(std::uintptr_t base, std::size_t bytes) {
    auto& cells = history().cells;
    if (cells.empty() || bytes == 0) {
        return;
    }
    split(base);
    split(base + bytes);
    cells.erase(cells.lower_bound(base), cells.lower_bound(base + bytes));
}

std::size_t history_size() {
    return history().cells.size();
}

}  // namespace softdev
