// SPDX-License-Identifier: Apache-2.0
// Whole buckets onto links so that every one is there when it is needed.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/options.h"
#include "planner/model/plan.h"
#include "planner/model/profile.h"

namespace deft::planner {

// A bucket exists from its ready time on; an iteration of length T needs it `slack` before its end.
// A link serves one bucket at a time, of those that exist the one needed first.
class Assignment {
public:
    static constexpr std::uint32_t kNone = ~std::uint32_t{0};
    using LinkOf = std::vector<std::uint32_t>;  // by bucket: index into the fabric's links

    Assignment(const Profile& profile, const Fabric& fabric, Barrier barrier);

    // The shortest iteration that any of the orders reaches, improved by moves and exchanges.
    // `least`: no iteration is shorter.
    LinkOf shortest(double least) const;
    // Any assignment that keeps to this length, found by branch and bound that looks at no more
    // than `effort` placements. Empty: there is none, or it was not found.
    LinkOf search(double length, std::uint64_t effort) const;

    // Seconds per iteration; infinite if a bucket has no link.
    double length(const LinkOf& link_of) const;
    // When each bucket starts on its link.
    std::vector<double> starts(const LinkOf& link_of) const;

private:
    using Set = std::vector<std::uint32_t>;  // buckets of one link, ascending
    using Links = std::vector<std::uint32_t>;
    // The best assignment so far, and its length.
    struct Found {
        LinkOf link_of;
        double length = INFINITY;
    };

    // Links are filled one after the other, in the order given; each takes every bucket that leaves
    // all of its own in time. Empty: some bucket is late.
    // `longest`: of all sets of a link that were in time, the longest.
    LinkOf fill(double length, const Set& order, const Links& links, double& longest) const;
    void bisect(double least, const Set& order, const Links& links, Found& best) const;
    void walk_down(double least, const Set& order, const Links& links, Found& best) const;
    void order_buckets(const Profile& profile);
    void order_links(const Profile& profile, const Fabric& fabric);
    // The link with one bucket more, if it is in time with it.
    class Filling;

    double link_length(std::uint32_t link, const Set& set, std::vector<double>* starts) const;
    double length_in_time(std::uint32_t link, const Set& set, double length) const;
    bool in_time(std::uint32_t link, const Set& set, double length) const;
    bool search_from(std::size_t depth, double length, std::uint64_t& effort,
                     std::vector<Set>& sets, LinkOf& link_of) const;
    bool improve(LinkOf& link_of) const;
    std::vector<Set> sets_of(const LinkOf& link_of) const;

    const Profile& profile_;
    const std::uint32_t n_;
    const Barrier barrier_;
    std::vector<double> slack_;               // by bucket: compute left when it is needed
    std::vector<std::vector<double>> costs_;  // by link and bucket
    Links links_;                             // fastest first, for the mean bucket
    std::vector<Links> link_orders_;          // the fastest first for other sizes too
    Set by_size_;                             // buckets, largest first
    std::vector<Set> orders_;                 // in which they are offered to a link
};

// The plan of an assignment; the job as it is where there is none.
Plan plan_assigned(const char* policy, const Assignment::LinkOf& link_of,
                   const Assignment& assignment, const Profile& profile, const Fabric& fabric,
                   const Options& options);

}  // namespace deft::planner
