// SPDX-License-Identifier: Apache-2.0
// How long planning takes, and how far from the bound it ends (counter gap_percent), each beside
// its bar where there is one. Wall time.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <random>
#include <string>

#include "planner/model/collective.h"
#include "planner/model/model.h"
#include "planner/policies/policy.h"
#include "planner/simulator/simulator.h"
#include "planner/solver/packing.h"

namespace {

using namespace deft::planner;

double uniform(std::mt19937_64& random, double low, double high) {
    return low + (high - low) * (static_cast<double>(random() >> 11) * 0x1.0p-53);
}

// Buckets of 0.5 to 5 ms, links slowed up to 2.3 times, 1.3 times as much as fits.
PackingProblem problem(std::size_t items, std::size_t links, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    PackingProblem p;
    p.links = links;
    double total = 0;
    double speed = 0;
    std::vector<double> slow;
    for (std::size_t i = 0; i < items; ++i) {
        p.value.push_back(uniform(random, 0.5e-3, 5e-3));
        total += p.value.back();
    }
    for (std::size_t j = 0; j < links; ++j) {
        slow.push_back(j == 0 ? 1 : uniform(random, 1, 2.3));
        speed += 1 / slow.back();
    }
    for (std::size_t i = 0; i < items; ++i) {
        for (std::size_t j = 0; j < links; ++j) {
            p.cost.push_back(slow[j] * p.value[i]);
        }
    }
    p.capacity.assign(links, total / 1.3 / speed);
    return p;
}

void pack(benchmark::State& state) {
    std::vector<PackingProblem> problems;
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
        problems.push_back(problem(static_cast<std::size_t>(state.range(0)),
                                   static_cast<std::size_t>(state.range(1)), seed));
    }
    PackingSolver solver;
    double gap = 0;
    std::size_t k = 0;
    for (auto _ : state) {
        const Packing& packing = solver.greedy(problems[k++ % problems.size()]);
        benchmark::DoNotOptimize(packing.value);
    }
    for (const PackingProblem& p : problems) {
        gap += solver.greedy(p).gap() / static_cast<double>(problems.size());
    }
    state.counters["gap_percent"] = 100 * gap;
}
BENCHMARK(pack)->Args({14, 2})->Args({38, 2})->Args({145, 4})->Args({226, 8})->Args({1000, 8});

Fabric four_links() {
    Fabric fabric;
    const double rates[] = {12e9, 10e9, 6e9, 2e9};
    for (int j = 0; j < 4; ++j) {
        fabric.links.push_back(ring_link("nic" + std::to_string(j), 16, 5e-6, rates[j]));
    }
    return fabric;
}

void best(benchmark::State& state) {
    ModelRun run;
    run.seconds = 0.8;
    const Profile profile = model_profile(make_model("llama-2-7b"), run);
    const Fabric fabric = four_links();
    Options options;
    options.max_delay = static_cast<std::uint32_t>(state.range(0));
    options.max_merge = static_cast<std::uint32_t>(state.range(1));
    options.max_period = static_cast<std::uint32_t>(state.range(2));
    for (auto _ : state) {
        benchmark::DoNotOptimize(make_plan("best", profile, fabric, options));
    }
    const Plan plan = make_plan("best", profile, fabric, options);
    state.counters["buckets"] = static_cast<double>(profile.size());
    state.counters["gap_percent"] = 100 * plan.predicted.gap;
    state.counters["period"] = plan.period;
}
BENCHMARK(best)
    ->ArgNames({"delay", "merge", "period"})
    ->Args({1, 2, 4})  // the default caps
    ->Args({4, 4, 4})
    ->Args({4, 4, 64})
    ->Unit(benchmark::kMillisecond);

void ten_thousand_ranks(benchmark::State& state) {
    Profile profile;
    for (int i = 0; i < 200; ++i) {
        profile.buckets.push_back({"b", 4 << 20, 1e-3 * (i + 1), 5e-4});
    }
    profile.forward = 0.1;
    profile.backward = 0.2;
    Fabric fabric;
    fabric.links.push_back(ring_link("nic", 10000, 1e-6, 1.25e10));
    const Plan plan = plan_none(profile, fabric, {});
    Simulation simulation;
    simulation.ranks = 10000;
    simulation.jitter = 0.1;
    simulation.iterations = 20;
    for (auto _ : state) {
        benchmark::DoNotOptimize(simulate(plan, profile, fabric, simulation).iteration);
    }
}
BENCHMARK(ten_thousand_ranks)->Unit(benchmark::kMillisecond);

struct Bar {
    const char* name;  // what the benchmark's name begins with
    double seconds;
    double gap_percent;  // 0: none
};

constexpr Bar kBars[] = {{"pack/38/2", 10e-6, 0.5},
                         {"pack/1000/8", 1e-3, 0.5},
                         {"best/delay:1/merge:2/period:4", 20e-3, 0},
                         {"best/delay:4/merge:4/period:4", 20e-3, 0},
                         {"ten_thousand_ranks", 10, 0}};

class BesideBars : public benchmark::ConsoleReporter {
public:
    BesideBars() : ConsoleReporter(OO_Tabular) {}
    void ReportRuns(const std::vector<Run>& runs) override {
        std::vector<Run> labelled = runs;
        for (Run& run : labelled) {
            for (const Bar& bar : kBars) {
                if (run.error_occurred || run.iterations == 0 ||
                    run.benchmark_name() != std::string(bar.name)) {
                    continue;
                }
                const double seconds =
                    run.real_accumulated_time / static_cast<double>(run.iterations);
                const auto gap = run.counters.find("gap_percent");
                const bool met =
                    seconds <= bar.seconds && (bar.gap_percent == 0 || gap == run.counters.end() ||
                                               gap->second.value <= bar.gap_percent);
                char text[80];
                int end = std::snprintf(text, sizeof text, "bar %g ms", bar.seconds * 1e3);
                if (bar.gap_percent > 0) {
                    end += std::snprintf(text + end, sizeof text - static_cast<std::size_t>(end),
                                         ", gap %g %%", bar.gap_percent);
                }
                std::snprintf(text + end, sizeof text - static_cast<std::size_t>(end), ": %s",
                              met ? "met" : "MISSED");
                run.report_label = text;
            }
        }
        ConsoleReporter::ReportRuns(labelled);
    }
};

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
        return 2;
    }
    BesideBars reporter;
    benchmark::RunSpecifiedBenchmarks(&reporter);
    benchmark::Shutdown();
    return 0;
}
