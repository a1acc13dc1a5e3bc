// SPDX-License-Identifier: Apache-2.0
// `deft advise`: bounds and a verdict for jobs that were observed or traced.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shim/planner/adviser.h"
#include "shim/planner/policies/policy.h"
#include "tools/planner/commands.h"
#include "tools/planner/fields.h"
#include "tools/planner/links_reader.h"
#include "tools/planner/profile_reader.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

using planner::Advice;
using planner::Estimate;

nlohmann::json to_json(const Estimate& e) {
    return {{"low", e.low}, {"middle", e.middle}, {"high", e.high}};
}

std::string row(const char* name, const Estimate& gain, double bound) {
    return fmt::format("  {:<44} {:>9.3f} ms {:>7.2f}x  ({:.2f}-{:.2f})\n", name, bound * 1e3,
                       gain.middle, gain.low, gain.high);
}

}  // namespace

int advise_command(const PlannerOptions& options) {
    nlohmann::json all = nlohmann::json::array();
    std::string text;
    for (const std::string& input : options.inputs) {
        const planner::Profile profile = options.read(input);
        planner::Fabric fabric;
        if (!options.links.empty()) {
            fabric = read_links(options.links, options.ranks_for(profile));
        } else {
            planner::Link link = planner::link_from_transfers(profile);
            if (link.name.empty()) {
                throw InputError(input +
                                 ": buckets: no transfer was timed; name the links (--links)");
            }
            fabric.links.push_back(std::move(link));
        }
        const planner::Options with = options.options();
        const Advice advice = advise(profile, fabric, with);
        const planner::Plan best = make_plan("best", profile, fabric, with);
        if (options.json) {
            all.push_back(
                {{"input", input},
                 {"verdict", advice.verdict},
                 {"nothing_to_gain", advice.nothing_to_gain},
                 {"measured_ms", advice.measured * 1e3},
                 {"compute_ms", advice.compute * 1e3},
                 {"communication_ms", advice.communication * 1e3},
                 {"coverage_rate", to_json(advice.coverage)},
                 {"order",
                  {{"bound_ms", advice.bound_order * 1e3}, {"gain", to_json(advice.gain_order)}}},
                 {"links",
                  {{"bound_ms", advice.bound_links * 1e3}, {"gain", to_json(advice.gain_links)}}},
                 {"delay",
                  {{"bound_ms", advice.bound_delay * 1e3}, {"gain", to_json(advice.gain_delay)}}},
                 {"merge",
                  {{"bound_ms", advice.bound_merge * 1e3}, {"gain", to_json(advice.gain_merge)}}},
                 {"order_cap", advice.order_cap},
                 {"overhead_ms", advice.overhead * 1e3},
                 {"best_plan_ms", best.predicted.iteration * 1e3},
                 {"best_plan_verdict", to_string(best.predicted.verdict)},
                 {"notes", advice.notes}});
            continue;
        }
        text += fmt::format("{}: {}\n", printable(input), advice.verdict);
        text += fmt::format(
            "  iteration {:.3f} ms{}; compute {:.3f} ms; all-reduces {:.3f} ms; coverage "
            "rate {:.2f} ({:.2f}-{:.2f})\n",
            advice.measured * 1e3,
            profile.iteration.measured() ? fmt::format(" ({} measured)", profile.iteration.n)
                                         : " (predicted)",
            advice.compute * 1e3, advice.communication * 1e3, advice.coverage.middle,
            advice.coverage.low, advice.coverage.high);
        text +=
            "  no plan can be faster than                        bound    gain  (10th-90th "
            "percentile)\n";
        text += row("ordering and cutting, same links", advice.gain_order, advice.bound_order);
        text += row("all links given", advice.gain_links, advice.bound_links);
        text += row("updates one iteration late", advice.gain_delay, advice.bound_delay);
        text += row(fmt::format("{} iterations per update, late", with.max_merge).c_str(),
                    advice.gain_merge, advice.bound_merge);
        text += fmt::format("  ordering never adds more than {:.2f}x to plain overlap\n",
                            advice.order_cap);
        text += fmt::format("  best plan within delay {}, merge {}: {:.3f} ms ({})\n",
                            with.max_delay, with.max_merge, best.predicted.iteration * 1e3,
                            to_string(best.predicted.verdict));
        for (const std::string& note : advice.notes) {
            text += "  note: " + note + "\n";
        }
        for (std::size_t i = 0; i < profile.size() && profile.size() <= 32; ++i) {
            const planner::Bucket& b = profile.buckets[i];
            text += fmt::format("  bucket {:>3}: {:>12} bytes, ready {:>9.3f} ms", i, b.bytes,
                                b.ready * 1e3);
            text += b.transfer.measured() ? fmt::format(", all-reduce {:.3f} ms ({:.3f}-{:.3f})\n",
                                                        b.transfer.median * 1e3,
                                                        b.transfer.p10 * 1e3, b.transfer.p90 * 1e3)
                                          : "\n";
        }
    }
    return print(options.json ? all.dump(1) + "\n" : text);
}

}  // namespace deft::tools
