// SPDX-License-Identifier: Apache-2.0
// A training job whose parameters are sharded: kernels that last as long as its compute,
// all-gathers and reduce-scatters of as many bytes as its layers. CUDA driver API and NCCL only.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "perf/jobs/sharded/job.h"

int main(int argc, char** argv) {
    sharded::Options options;
    CLI::App app(
        "One rank of a job whose parameters are sharded; RANK, WORLD_SIZE and LOCAL_RANK "
        "say which.");
    app.add_option("--kind", options.kind,
                   "fsdp, fsdp-grouped (four calls of a layer in a group) "
                   "or hsdp (shards are summed over replicas too)")
        ->check(CLI::IsMember({"fsdp", "fsdp-grouped", "hsdp"}));
    app.add_option("--layers", options.layers)->check(CLI::Range(1, 1000));
    app.add_option("--bytes", options.bytes, "of a layer");
    app.add_option("--compute-ms", options.compute_ms, "of an iteration");
    app.add_option("--iterations", options.iterations)->check(CLI::Range(2, 1000000));
    app.add_option("--id-file", options.id_file)->required();
    app.add_option("--json", options.json);
    app.add_option("--rank", options.rank)->envname("RANK");
    app.add_option("--ranks", options.ranks)->envname("WORLD_SIZE");
    app.add_option("--local-rank", options.local_rank)->envname("LOCAL_RANK");
    CLI11_PARSE(app, argc, argv);
    try {
        sharded::run_rank(options);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "sharded: rank %d: %s\n", options.rank, error.what());
        std::fflush(nullptr);
        std::_Exit(1);  // the communicators' threads may still be at work
    }
}
