// SPDX-License-Identifier: Apache-2.0
// Members of a communicator, simulated: what thousands of ranks say to a leader, by one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "shim/agreement/wire.h"

namespace deft::agreement_scale {

namespace wire = agreement::wire;

struct Shape {
    int ranks = 0;     // of the communicator; rank 0 leads, and is not simulated
    int per_link = 1;  // ranks that share a connection to the leader
    std::size_t report_bytes = 0;
    int reporters = 0;  // how many of the ranks report
};

// All ranks but the leader. One thread; every call does what is to be done and returns.
class Members {
public:
    static constexpr std::uint32_t kNobody = ~0U;

    Members(const Shape& shape, const wire::Trailer& trailer, const wire::Hello& like);

    // Connects all that are not, a burst at a time, and says their hellos.
    bool connect_some();
    // Reads and answers what has come; waits up to `milliseconds` for it.
    void turn(int milliseconds);
    // Every reporter reports once, nothing but zeros or what it is given.
    void report();
    void report(std::span<const std::byte> payload);
    // This rank says nothing more, and its connection stays.
    void silence(std::uint32_t rank) { silent_ = rank; }
    // Breaks the connections of this rank's host and of those behind it.
    void cut_from(std::uint32_t rank);

    int verdicts() const { return verdicts_; }    // ranks that were told On
    int decisions() const { return decisions_; }  // decisions that ranks were told, all together
    int lost() const { return lost_; }            // connections that the leader has ended
    // The leader has decided so on this proposal, and the rank has heard it.
    bool committed(std::uint32_t rank, std::uint64_t serial) const;
    // The leader has said that a rank is gone, or has ended the rank's connection.
    bool closed(std::uint32_t rank) const { return link_of(rank).closed; }

private:
    struct Link {
        UniqueFd fd;
        std::vector<std::byte> in;
        std::size_t taken = 0;
        std::vector<std::byte> out;
        std::vector<std::uint32_t> ranks;
        std::uint64_t committed = 0;  // serial of the last proposal that was
        bool closed = false;
    };
    const Link& link_of(std::uint32_t rank) const;

    const Shape shape_;
    const wire::Trailer trailer_;
    wire::Hello hello_;
    UniqueFd poll_;
    std::vector<Link> links_;
    std::size_t connected_ = 0;
    int verdicts_ = 0;
    int decisions_ = 0;
    int lost_ = 0;
    std::uint32_t silent_ = kNobody;

    void send(Link& link, wire::Type type, std::uint32_t rank, std::span<const std::byte> payload);
    void flush(Link& link);
    void read(Link& link);
    bool next(Link& link);
    void take(Link& link, const wire::Header& header, std::span<const std::byte> payload);
};

}  // namespace deft::agreement_scale
