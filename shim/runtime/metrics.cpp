// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "base/build_version.h"
#include "base/json_writer.h"
#include "base/link_stats.h"

namespace deft {
namespace {

// What stands between the quotes of a label's value.
std::string label_text(const std::string& text) {
    constexpr std::size_t kLongest = 128;
    std::string escaped;
    for (const char c : text.substr(0, kLongest)) {
        if (c == '\\' || c == '"') {
            escaped += '\\';
            escaped += c;
        } else {
            const auto byte = static_cast<unsigned char>(c);
            escaped += byte < 0x20 || byte >= 0x7F ? '?' : c;
        }
    }
    return escaped;
}

std::string label(const char* name, const std::string& value) {
    return std::string(name) + "=\"" + label_text(value) + "\"";
}

// Grows line by line. All samples of a family stand together, behind its head.
class Exposition {
public:
    explicit Exposition(std::string labels) : labels_(std::move(labels)) {}

    void family(const char* name, const char* type, const char* help) {
        name_ = name;
        text_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + type + "\n";
    }
    void sample(std::uint64_t value, const std::string& labels = {}, const char* suffix = "") {
        line(std::to_string(value), labels, suffix);
    }
    void sample(double value, const std::string& labels = {}, const char* suffix = "") {
        line(decimal(value), labels, suffix);
    }
    void counter(const char* name, const char* help, std::uint64_t value) {
        family(name, "counter", help);
        sample(value);
    }
    void gauge(const char* name, const char* help, double value) {
        family(name, "gauge", help);
        sample(value);
    }

    std::string take() { return std::move(text_); }

private:
    void line(const std::string& value, const std::string& labels, const char* suffix) {
        text_ += name_ + suffix + "{" + labels_ + (labels.empty() ? "" : ",") + labels + "} " +
                 value + "\n";
    }

    const std::string labels_;
    std::string name_;
    std::string text_;
};

template <class Counter>
std::uint64_t get(const Counter& counter) {
    return static_cast<std::uint64_t>(counter.load(std::memory_order_relaxed));
}

double seconds(std::uint64_t nanoseconds) {
    return static_cast<double>(nanoseconds) * 1e-9;
}

// The same figure of every link.
template <class Value>
void of_links(Exposition& out, const char* name, const char* type, const char* help, Value value) {
    const LinkStats& links = LinkStats::process();
    out.family(name, type, help);
    for (std::size_t i = 0; i < links.size(); ++i) {
        out.sample(value(links[i]),
                   label("link", links[i].name) + "," + label("kind", links[i].kind));
    }
}

void stalls(Exposition& out) {
    const LinkStats& links = LinkStats::process();
    out.family("deft_link_stall_seconds", "histogram",
               "How long paths over the link were silent or lost until they were back");
    for (std::size_t i = 0; i < links.size(); ++i) {
        const LinkCounters& link = links[i];
        const std::string labels = label("link", link.name) + "," + label("kind", link.kind);
        std::uint64_t below = 0;
        for (std::size_t bound = 0; bound < kStallBounds.size(); ++bound) {
            below += get(link.stalls[bound]);
            out.sample(below, labels + "," + label("le", decimal(kStallBounds[bound])), "_bucket");
        }
        below += get(link.stalls.back());
        out.sample(below, labels + "," + label("le", "+Inf"), "_bucket");
        out.sample(seconds(get(link.stall_ns)), labels, "_sum");
        out.sample(below, labels, "_count");
    }
}

void links(Exposition& out) {
    of_links(out, "deft_link_sent_bytes_total", "counter",
             "Bytes of the job that the link has sent",
             [](const LinkCounters& link) { return get(link.bytes_sent); });
    of_links(out, "deft_link_received_bytes_total", "counter",
             "Bytes of the job that the link has received",
             [](const LinkCounters& link) { return get(link.bytes_received); });
    of_links(out, "deft_link_resent_bytes_total", "counter",
             "Bytes that were sent again because a path failed",
             [](const LinkCounters& link) { return get(link.resent_bytes); });
    of_links(out, "deft_link_busy_seconds_total", "counter",
             "Time with at least one transfer under way, summed over paths",
             [](const LinkCounters& link) { return seconds(get(link.busy_ns)); });
    of_links(out, "deft_link_transitions_total", "counter", "Changes of the state of paths",
             [](const LinkCounters& link) { return get(link.transitions); });
    of_links(out, "deft_link_up", "gauge", "1 while no path over the link is silent or lost",
             [](const LinkCounters& link) {
                 return std::uint64_t{link.paths_away.load(std::memory_order_relaxed) <= 0};
             });
    of_links(out, "deft_link_paths", "gauge", "Paths that can send over the link",
             [](const LinkCounters& link) {
                 return static_cast<double>(link.paths_up.load(std::memory_order_relaxed));
             });
    of_links(out, "deft_link_speed_bytes_per_second", "gauge",
             "Nominal or measured rate of the link; 0 is unknown", [](const LinkCounters& link) {
                 return static_cast<double>(link.speed_mbps.load(std::memory_order_relaxed)) * 1e6 /
                        8;
             });
    stalls(out);
}

// Of all communicators of the rank.
struct Plans {
    std::uint64_t in_force = 0, begun = 0, ended = 0, iterations = 0, bytes = 0, dropped = 0,
                  decisions = 0;
    std::uint32_t max_delay = 0;
    double updates = 1;       // the fewest
    double predicted_ms = 0;  // the longest
    double before_ms = 0;
    double loss = std::numeric_limits<double>::quiet_NaN();  // of one that tells it
    double loss_expected = 0;
};

Plans sum_of(const std::vector<PlanFacts>& plans) {
    Plans sum;
    for (const PlanFacts& plan : plans) {
        sum.begun += plan.switched;
        sum.ended += plan.ended;
        sum.iterations += plan.iterations;
        sum.bytes += plan.launched_bytes;
        sum.dropped += plan.dropped;
        sum.decisions += plan.guard_decisions;
        if (std::isfinite(plan.loss) && std::isfinite(plan.loss_expected)) {
            sum.loss = plan.loss;
            sum.loss_expected = plan.loss_expected;
        }
        sum.before_ms = std::max(sum.before_ms, plan.before_ms);
        if (plan.state == "running") {
            ++sum.in_force;
            sum.max_delay = std::max(sum.max_delay, plan.max_delay);
            sum.updates = std::min(sum.updates, plan.updates);
            sum.predicted_ms = std::max(sum.predicted_ms, plan.predicted_ms);
        }
    }
    return sum;
}

void plans(Exposition& out, const std::vector<PlanFacts>& all) {
    const Plans sum = sum_of(all);
    out.gauge("deft_plan_in_force", "Communicators of the rank whose transfers a plan moves",
              static_cast<double>(sum.in_force));
    out.counter("deft_plan_begun_total", "Plans that came into force", sum.begun);
    out.counter("deft_plan_interrupted_total", "Plans that the job ended by another iteration",
                sum.ended);
    out.counter("deft_plan_iterations_total", "Iterations of the job under a plan", sum.iterations);
    out.counter("deft_plan_sent_bytes_total", "Bytes of gradients that plans have sent", sum.bytes);
    out.counter("deft_plan_dropped_sums_total", "Sums on their way that were dropped at an end",
                sum.dropped);
    out.gauge("deft_plan_updates_per_iteration", "Updates of the weights that an iteration gets",
              sum.updates);
    out.gauge("deft_plan_max_delay_iterations", "How late the oldest gradient of an update is",
              sum.max_delay);
    out.gauge("deft_plan_predicted_iteration_seconds",
              "What an iteration should take under the plan in force; 0 without one",
              sum.predicted_ms * 1e-3);
    out.gauge("deft_plan_earlier_iteration_seconds",
              "What an iteration took before the plan; 0 is unknown, or another rank leads",
              sum.before_ms * 1e-3);
    out.counter("deft_guard_decisions_total",
                "Times that the accuracy guard tightened or ended a plan; on the leader's rank",
                sum.decisions);
    if (std::isfinite(sum.loss)) {
        out.gauge("deft_guard_loss",
                  "Mean of the job's latest losses under plans; on the leader's rank", sum.loss);
        out.gauge("deft_guard_loss_expected",
                  "What that loss may be by its trend without plans, at most", sum.loss_expected);
    }
}

void iterations(Exposition& out, const Track* track) {
    const CallTimes* const profile = track != nullptr ? track->main_profile() : nullptr;
    if (profile == nullptr) {
        return;
    }
    out.counter("deft_iterations_total", "Iterations of the job that were recognised",
                track->iterations());
    const auto median = [&out](const char* name, const char* help, const Samples& samples,
                               double factor) {
        if (samples.count() > 0) {
            out.gauge(name, help, samples.summary().median * factor);
        }
    };
    median("deft_iteration_seconds", "Median of the latest measured iterations",
           profile->iteration_ms(), 1e-3);
    median("deft_iteration_exposed_seconds",
           "Median of the time that an iteration waits for transfers", profile->exposed_ms(), 1e-3);
    median("deft_coverage_ratio",
           "Median of the time to transfer all gradients, divided by that to compute",
           profile->coverage_rate(), 1);
}

void calls(Exposition& out, const ReportFacts& facts) {
    out.family("deft_calls_total", "counter", "NCCL calls that the hooks of the process have seen");
    for (std::size_t i = 0; i < kFunctions; ++i) {
        if (facts.calls[i] != 0) {
            out.sample(facts.calls[i], label("function", function_name(static_cast<Function>(i))));
        }
    }
    out.counter("deft_calls_lost_total",
                "Calls that were seen and not learned from, being too many", facts.lost_calls);
}

}  // namespace

std::string metrics_text(const ReportFacts& facts, const Track* track, const MetricsFacts& more) {
    Exposition out(label("job_id", more.job_id) + "," + label("rank", std::to_string(facts.rank)) +
                   "," + label("pid", std::to_string(facts.pid)));
    out.family("deft_info", "gauge", "What runs here; always 1");
    out.sample(std::uint64_t{1}, label("version", build_version()) + "," +
                                     label("mode", facts.mode) + "," +
                                     label("ranks", std::to_string(facts.ranks)));
    out.gauge("deft_kill_switch", "1 while the kill switch is there for this rank", more.killed);
    iterations(out, track);
    plans(out, facts.plans);
    if (more.links) {
        calls(out, facts);
        links(out);
    }
    return out.take();
}

}  // namespace deft
