// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/probed_rates.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include "base/config.h"
#include "base/config_file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "topology/kernel_links.h"

namespace deft::net {
namespace {

// False, and why: it cannot be read, is no file, or is too large.
bool read_file(const std::string& path, std::string& text, std::int64_t& written,
               std::string& problem) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) {
        problem = std::strerror(errno);
        return false;
    }
    if (!S_ISREG(status.st_mode)) {
        problem = "it is no file";
        return false;
    }
    if (static_cast<std::uint64_t>(status.st_size) > ProbedRates::kLargest) {
        problem = "it is larger than 8 MiB: probe fewer hosts at once";
        return false;
    }
    written = status.st_mtim.tv_sec;
    text.resize(static_cast<std::size_t>(status.st_size));
    std::size_t got = 0;
    while (got < text.size()) {
        const ssize_t more = ::read(fd.get(), text.data() + got, text.size() - got);
        if (more < 0 && errno == EINTR) {
            continue;
        }
        if (more <= 0) {
            problem = more < 0 ? std::strerror(errno) : "it became shorter while it was read";
            return false;
        }
        got += static_cast<std::size_t>(more);
    }
    return true;
}

// Gbit/s of a flow; 0 where nothing was measured.
double rate_of(const Json& pair, const char* direction) {
    if (!pair.has(direction) || pair.get(direction, "").kind() != Json::Kind::Object) {
        return 0;
    }
    return pair.get(direction, "").get("gbit_per_s", direction).as_double("gbit_per_s");
}

std::vector<Address> own_addresses() {
    std::vector<KernelAddress> known;
    std::vector<Address> addresses;
    if (read_kernel_addresses(known)) {
        for (const KernelAddress& each : known) {
            addresses.push_back(each.address);
        }
    }
    return addresses;
}

}  // namespace

std::string ProbedRates::key(const Address& from, const Address& to) {
    std::string key;
    for (const Address* address : {&from, &to}) {
        key.push_back(static_cast<char>(address->family));
        key.append(reinterpret_cast<const char*>(address->bytes.data()), address->size());
    }
    return key;
}

void ProbedRates::keep(const std::string& from, const std::string& to, double bytes_per_second,
                       const std::vector<Address>& own) {
    Address source;
    Address target;
    if (!(bytes_per_second > 0) || !std::isfinite(bytes_per_second) ||
        !parse_address(from, source) || !parse_address(to, target)) {
        return;
    }
    // The kernel lists none but the first of 127.0.0.0/8.
    const bool ours =
        source.loopback() || std::any_of(own.begin(), own.end(), [&source](const Address& address) {
            return address.family == source.family && address.bytes == source.bytes;
        });
    if (ours) {
        rates_[key(source, target)] = bytes_per_second;
    }
}

ProbedRates ProbedRates::from(std::string_view text, std::int64_t written, std::int64_t now,
                              const std::vector<Address>& own, std::string& problem) {
    ProbedRates rates;
    try {
        const Json document = Json::parse(text);
        if (document.get("format", "").as_text("format") != "deft-probe" ||
            document.get("version", "").as_signed("version") != 1) {
            problem = "it is no result of this release's deft probe --json";
            return {};
        }
        if (document.has("measured_at")) {
            // From 1970 on, or what follows would overflow.
            written =
                std::max<std::int64_t>(0, document.get("measured_at", "").as_signed("measured_at"));
        }
        if (now - written > kOldest) {
            problem = "it was measured " + std::to_string((now - written) / 86400) +
                      " days ago, 7 are allowed: run deft probe again";
            return {};
        }
        for (const Json& hosts : document.get("pairs", "").as_array("pairs")) {
            for (const Json& pair : hosts.get("links", "pairs").as_array("links")) {
                const std::string& from = pair.get("from_address", "links").as_text("from_address");
                const std::string& to = pair.get("to_address", "links").as_text("to_address");
                rates.keep(from, to, rate_of(pair, "there") * 1e9 / 8, own);
                rates.keep(to, from, rate_of(pair, "back") * 1e9 / 8, own);
            }
        }
    } catch (const JsonError& error) {
        problem = std::string("it is no result of deft probe --json: ") + error.what();
        return {};
    }
    if (rates.rates_.empty()) {
        problem = "it has no measured pair of this host's links";
    }
    return rates;
}

double ProbedRates::rate(const Address& own, const Address& peer) const {
    if (rates_.empty()) {
        return 0;
    }
    const auto found = rates_.find(key(own, peer));
    return found == rates_.end() ? 0 : found->second;
}

const ProbedRates& ProbedRates::process() {
    // Never destroyed: NCCL's threads may be inside while the process exits.
    static const auto& rates = *[] {
        const std::string& path = Config::process().text(Key::Probe);
        ProbedRates read;
        std::string text;
        std::string problem;
        std::int64_t written = 0;
        if (path.empty()) {
            return new ProbedRates;
        }
        if (read_file(path, text, written, problem)) {
            read = from(text, written, ::time(nullptr), own_addresses(), problem);
        }
        if (!problem.empty()) {
            DEFT_WARN("DEFT_PROBE=%s: %s; %s", shown_text(path).c_str(),
                      shown_text(problem).c_str(), kRemedy);
        } else {
            DEFT_INFO("DEFT_PROBE=%s: first guesses for %zu pairs of links",
                      shown_text(path).c_str(), read.size());
        }
        return new ProbedRates(std::move(read));
    }();
    return rates;
}

}  // namespace deft::net
