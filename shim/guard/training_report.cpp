// SPDX-License-Identifier: Apache-2.0
#include "shim/guard/training_report.h"

#include <algorithm>
#include <bit>

#include "base/bytes.h"

namespace deft::guard {
namespace {

constexpr std::uint64_t kMagic = 0x3172746172740001ULL;  // with the version of the layout

}  // namespace

std::vector<std::byte> encode(std::span<const Training> told) {
    ByteString out;
    const std::size_t count = std::min(told.size(), kMostTold);
    out.put(kMagic);
    out.put(static_cast<std::uint8_t>(count));
    for (const Training& one : told.first(count)) {
        out.put(one.iteration);
        out.put(std::uint8_t{one.late});
        out.put(std::bit_cast<std::uint64_t>(one.loss));
        out.put(std::bit_cast<std::uint64_t>(one.norm));
        out.put(std::bit_cast<std::uint64_t>(one.rate));
    }
    return out.take();
}

bool decode(std::span<const std::byte> bytes, std::vector<Training>& told) {
    ByteReader in(bytes);
    const bool known = in.get<std::uint64_t>() == kMagic;
    const std::size_t count = in.get<std::uint8_t>();
    if (!known || !in.ok() || count > kMostTold) {
        return false;
    }
    told.resize(count);
    for (Training& one : told) {
        one.iteration = in.get<std::uint64_t>();
        one.late = in.get<std::uint8_t>() != 0;
        one.loss = in.get<double>();
        one.norm = in.get<double>();
        one.rate = in.get<double>();
    }
    return in.ok() && in.left() == 0;
}

}  // namespace deft::guard
