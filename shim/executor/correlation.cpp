// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/correlation.h"

#include <algorithm>
#include <utility>

#include "shim/nccl/call.h"

namespace deft::executor {
namespace {

constexpr std::uint64_t kAlign = 512;

// The iteration of the period that sends most: where sums of different buckets take turns, the
// pieces must be of one update.
std::pair<std::uint32_t, std::uint32_t> launches_of_fullest(const Script& script) {
    std::pair<std::uint32_t, std::uint32_t> fullest;
    std::uint64_t most = 0;
    for (std::uint32_t i = 0; i < script.period; ++i) {
        std::uint32_t first = ~0U;
        std::uint32_t last = 0;
        std::uint64_t bytes = 0;
        for (std::size_t position = 0; position < script.shapes.size(); ++position) {
            const Action& action = script.action(i, position);
            for (std::uint32_t l = action.launch; l < action.launch_end; ++l) {
                first = std::min(first, l);
                last = std::max(last, l + 1);
                bytes += script.launches[l].end - script.launches[l].begin;
            }
        }
        if (bytes > most) {
            most = bytes;
            fullest = {first, last};
        }
    }
    return fullest;
}

}  // namespace

// How often a period of the script sends it, on its lane; 0 if sums of these bytes go another way
// too, so that two in a row would not be of two updates in a row.
std::uint64_t Correlation::times(const Script& script, const Piece& piece) {
    std::uint64_t same = 0;
    std::uint64_t bytes = 0;  // of it, by whatever way
    for (const Launch& launch : script.launches) {
        if (script.regions[launch.region].bucket != piece.bucket) {
            continue;
        }
        const std::uint64_t begin = std::max(launch.begin, piece.begin);
        const std::uint64_t end = std::min(launch.end, piece.end);
        bytes += end > begin ? end - begin : 0;
        same += launch.lane == piece.lane && launch.begin == piece.begin && launch.end == piece.end
                    ? 1
                    : 0;
    }
    return bytes == same * (piece.end - piece.begin) ? same : 0;
}

Correlation::Correlation(const Script& script) : piece_of_(script.launches.size(), kNone) {
    if (script.residual || script.actions.empty()) {
        return;
    }
    const auto piece_at = [&script](std::size_t launch) {
        const Launch& l = script.launches[launch];
        Piece piece;
        piece.bucket = script.regions[l.region].bucket;
        piece.lane = l.lane;
        piece.begin = l.begin;
        piece.end = l.end;
        return piece;
    };
    std::uint64_t often = 0;  // all alike
    std::vector<Piece> all;
    const auto [first, last] = launches_of_fullest(script);
    for (std::uint32_t l = first; l < last; ++l) {
        Piece piece = piece_at(l);
        const int type = script.shapes[piece.bucket].type;
        const std::uint64_t sent = times(script, piece);
        if (!element_of(type, piece.element) || sent == 0 || (often != 0 && sent != often) ||
            std::find(all.begin(), all.end(), piece) != all.end()) {
            continue;
        }
        often = sent;
        const std::uint64_t size = element_size(type);
        const std::uint64_t count = (piece.end - piece.begin) / size;
        piece.count = std::min(count, kWindow);
        piece.skip = (count - piece.count) / 2 * size / kAlign * kAlign;
        all.push_back(piece);
    }
    const std::size_t wanted = std::min(all.size(), kPieces);
    for (std::size_t i = 0; i < wanted; ++i) {
        Piece piece = all[(2 * i + 1) * all.size() / (2 * wanted)];
        piece.at = bytes_;
        const std::uint64_t window = piece.count * element_size(script.shapes[piece.bucket].type);
        piece.slot = (window + kAlign - 1) / kAlign * kAlign;
        bytes_ += piece.slot * kBack;
        pieces_.push_back(piece);
    }
    for (std::size_t l = 0; l < piece_of_.size(); ++l) {
        const auto found = std::find(pieces_.begin(), pieces_.end(), piece_at(l));
        if (found != pieces_.end()) {
            piece_of_[l] = static_cast<std::uint8_t>(found - pieces_.begin());
        }
    }
}

void Correlation::restart() noexcept {
    for (Piece& piece : pieces_) {
        piece.updates = 0;
    }
}

int Correlation::after(const Kernels& kernels, std::size_t launch, cuda::Stream stream,
                       cuda::DevicePointer to, cuda::DevicePointer out) noexcept {
    if (piece_of_[launch] == kNone) {
        return cuda::kSuccess;
    }
    Piece& piece = pieces_[piece_of_[launch]];
    const std::uint64_t update = piece.updates++;
    const auto kept = [&](std::uint64_t back) {
        return update < back ? 0 : memory_ + piece.at + (update - back) % kBack * piece.slot;
    };
    // The oldest gives its place to this one.
    return kernels.correlate(piece.element, to + piece.skip, kept(1), kept(kBack),
                             memory_ + piece.at + update % kBack * piece.slot, piece.count, out,
                             stream);
}

}  // namespace deft::executor
