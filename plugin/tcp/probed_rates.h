// SPDX-License-Identifier: Apache-2.0
// DEFT_PROBE: what `deft probe` has measured between pairs of links, as the first guess of how fast
// a path is. Traffic corrects the guess as it corrects any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "topology/interfaces.h"

namespace deft::net {

class ProbedRates {
public:
    static constexpr std::size_t kLargest = 8 << 20;        // bytes of a file
    static constexpr std::int64_t kOldest = 7 * 24 * 3600;  // seconds
    static constexpr const char* kRemedy = "rates are learned from traffic";

    // The file's; read at the first call, with one WARN where it cannot be used. Waits for the
    // file, so not first from a data path. Any thread.
    static const ProbedRates& process();

    // Of the text of `deft probe --json`, written at `written` (seconds since 1970, where the text
    // does not say it itself). Only pairs of `own` addresses are kept. Empty, and why, where the
    // text is none, is older than kOldest at `now`, or names no pair of them.
    static ProbedRates from(std::string_view text, std::int64_t written, std::int64_t now,
                            const std::vector<Address>& own, std::string& problem);

    // Bytes per second that a connection from `own` to `peer` has carried; 0: not measured.
    double rate(const Address& own, const Address& peer) const;
    std::size_t size() const { return rates_.size(); }

private:
    std::unordered_map<std::string, double> rates_;  // by both addresses

    static std::string key(const Address& from, const Address& to);
    void keep(const std::string& from, const std::string& to, double bytes_per_second,
              const std::vector<Address>& own);
};

}  // namespace deft::net
