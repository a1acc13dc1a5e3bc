// SPDX-License-Identifier: Apache-2.0
// What a gradient call costs in the hook, on a driver and an NCCL that do nothing: deft's own
// share. The driver's share comes on top: each step that a script shows is one asynchronous driver
// call.
//
//     call_cost [iterations]      one JSON object on standard output
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "perf/executor/fake_driver.h"
#include "perf/executor/plans.h"

using namespace deft;
using namespace deft::executor;
using namespace deft::executor::test;

namespace {

struct Case {
    const char* name;
    std::uint32_t merge;
    std::uint32_t delay;
    std::vector<Part> parts;
    bool statistics;
    Prediction prediction;
};

struct Result {
    double median_us;
    double p99_us;
    double driver_calls;  // per gradient call
};

Result measure(const Case& what, int iterations) {
    std::vector<Shape> shapes(8, {1 << 20, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM});
    CompileOptions compile_options;
    compile_options.lanes = 2;
    compile_options.history = what.prediction.history();
    std::string problem;
    Script script = compile(
        uniform_plan(std::vector<std::uint64_t>(8, 4 << 20), what.merge, what.delay, what.parts),
        shapes, compile_options, problem);
    Lane first(fake_nccl(), fake_execution(), 0);
    Lane second(fake_nccl(), fake_execution(), 0);
    ExecutorOptions options;
    options.statistics = what.statistics;
    options.prediction = what.prediction;
    if (!problem.empty() || !first.open({}, 2, 0, {}, problem) ||
        !second.open({}, 2, 0, {}, problem)) {
        std::fprintf(stderr, "%s\n", problem.c_str());
        std::exit(1);
    }
    auto executor = Executor::create(fake_execution(), fake_nccl(), 0, {&first, &second},
                                     std::move(script), options, problem);
    std::vector<double> samples;
    samples.reserve(static_cast<std::size_t>(iterations) * shapes.size());
    Call call;
    call.count = shapes[0].count;
    call.type = shapes[0].type;
    call.op = shapes[0].op;
    call.send = call.receive = handle<void>(1 << 24);
    const std::uint64_t before = g_fake.calls;
    for (int t = 0; t < iterations; ++t) {
        for (std::size_t b = 0; b < shapes.size(); ++b) {
            int result = 0;
            const auto start = std::chrono::steady_clock::now();
            executor->all_reduce(call, handle<deft_cuda_stream>(128), result);
            samples.push_back(
                std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                    .count());
        }
        Statistics statistics;
        while (executor->take(statistics)) {
        }
    }
    const double calls = static_cast<double>(g_fake.calls - before) / double(samples.size());
    std::sort(samples.begin(), samples.end());
    return {samples[samples.size() / 2], samples[samples.size() * 99 / 100], calls};
}

}  // namespace

int main(int argc, char** argv) {
    const int iterations = argc > 1 ? std::atoi(argv[1]) : 20000;
    const std::vector<Part> whole{{1, 0}};
    const std::vector<Part> split{{0.6, 0}, {1, 1}};
    const std::vector<Case> cases{
        {"forwarded", 1, 0, whole, false, {}},
        {"exact, split over two lanes", 1, 0, split, false, {}},
        {"delay 1, two lanes", 1, 1, split, false, {}},
        {"delay 1, two lanes, lead", 1, 1, split, false, {PredictionKind::Lead, 0.9}},
        {"delay 1, two lanes, guarded", 1, 1, split, true, {}},
        {"merge 2, one lane", 2, 0, {{1, 1}}, false, {}},
    };
    std::printf("{\"format\":\"deft-call-cost\",\"version\":1,\"iterations\":%d,\"cases\":[",
                iterations);
    const char* comma = "";
    for (const Case& what : cases) {
        const Result result = measure(what, iterations);
        std::printf(
            "%s\n {\"name\":\"%s\",\"median_us\":%.3f,\"p99_us\":%.3f,"
            "\"driver_calls\":%.1f}",
            comma, what.name, result.median_us, result.p99_us, result.driver_calls);
        comma = ",";
    }
    std::printf("\n]}\n");
    return 0;
}
