// SPDX-License-Identifier: Apache-2.0
#include "perf/jobs/replay/options.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "perf/jobs/replay/profile.h"

namespace replay {
namespace {

constexpr int kMostRanks = 1024;

// A variable of the environment as torchrun sets it; `absent` where it is not there.
int from_environment(const char* name, int absent) {
    const char* const text = std::getenv(name);
    if (text == nullptr) {
        return absent;
    }
    int value = -1;
    const char* const end = text + std::strlen(text);
    const auto read = std::from_chars(text, end, value);
    if (read.ec != std::errc() || read.ptr != end || value < 0 || value > kMostRanks) {
        throw InputError(std::string(name) + "=" + text + " is no number from 0 to 1024");
    }
    return value;
}

// CLI::Range lets it through: it is neither below nor above.
std::string no_nan(const std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is no number" : std::string();
}

}  // namespace

bool parse(int argc, char** argv, Options& options) {
    CLI::App app(
        "Replays a training job: kernels that take as long as its compute and all-reduces of as "
        "many bytes as its gradients. Prints the time of every iteration as JSON.\n"
        "With RANK and WORLD_SIZE in the environment it is one rank; without, it starts --ranks "
        "ranks here.");
    const auto count = CLI::Range(1, 10000000);
    app.add_option("--profile", options.profile,
                   "The iteration: deft plan --save-profile, deft sim --json, or a report of mode "
                   "observe")
        ->required();
    app.add_option("--schedule", options.schedule,
                   "A plan of period 1 (deft plan --policy bytescheduler --out): the job sends its "
                   "pieces itself, and forward of a layer waits for that layer's gradient only");
    app.add_flag("--layers", options.layers,
                 "Forward of a layer waits for that layer's gradient only, and deft is told so "
                 "(DEFT_LAYERWISE=auto): it may send the sums in another order");
    app.add_flag("--look", options.look,
                 "Say of each iteration how many gradients were zeros when its update got them; "
                 "not with --layers or --schedule");
    app.add_option("--time-scale", options.time_scale, "Compute takes this many times as long (1)")
        ->check(CLI::Range(1e-6, 1e6))
        ->check(no_nan);
    app.add_option("--size-scale", options.size_scale, "Gradients are this many times as large (1)")
        ->check(CLI::Range(1e-9, 1e3))
        ->check(no_nan);
    app.add_option("--iterations", options.iterations, "Iterations with all-reduces (100)")
        ->check(count);
    app.add_option("--alone", options.alone, "Iterations without, before those (5)")
        ->check(CLI::Range(0, 10000000));
    app.add_option("--skip", options.skip, "Iterations left out of the summary (5)")
        ->check(CLI::Range(0, 10000000));
    app.add_option("--ahead", options.ahead, "Iterations the host may be ahead (1)")
        ->check(CLI::Range(0, 100));
    app.add_option("--ranks", options.ranks, "Ranks to start on this machine")
        ->check(CLI::Range(1, kMostRanks));
    app.add_option("--id-file", options.id_file,
                   "Where rank 0 leaves NCCL's unique id; a new path for every job");
    app.add_option("--json", options.json, "Rank 0 writes the results there (standard output)");
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& asked) {
        app.exit(asked);
        return false;
    } catch (const CLI::ParseError& error) {
        throw InputError(error.what());
    }
    if (options.layers && !options.schedule.empty()) {
        throw InputError("--layers: deft chooses the order, and --schedule does");
    }
    if (options.look && (options.layers || !options.schedule.empty())) {
        throw InputError("--look: an update gets no gradients at once with --layers or --schedule");
    }
    options.rank = from_environment("RANK", -1);
    const int world = from_environment("WORLD_SIZE", 0);
    if (options.rank < 0) {
        if (options.ranks == 0) {
            throw InputError("neither --ranks nor RANK says which rank this is; try --ranks 2");
        }
        return true;
    }
    if (options.ranks != 0 && options.ranks != world) {
        throw InputError("--ranks and WORLD_SIZE differ");
    }
    options.ranks = world;
    options.local_rank = from_environment("LOCAL_RANK", options.rank);
    if (world < 1 || options.rank >= world) {
        throw InputError("RANK " + std::to_string(options.rank) + " is none of WORLD_SIZE " +
                         std::to_string(world));
    }
    if (options.id_file.empty() && world > 1) {
        throw InputError("--id-file is needed where RANK is set: the ranks meet there");
    }
    return true;
}

}  // namespace replay
