// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tools/observed_document.h"

namespace deft::tools {

using nlohmann::json;

json quantiles(double median) {
    return {{"median", median}, {"p10", median * 0.9}, {"p90", median * 1.2}, {"n", 40}};
}

json document(int rank, int ranks, double slower) {
    return {{"format", "deft-observe"},
            {"version", 1},
            {"library", {{"version", "0.1.0"}, {"path", "/lib/libnccl-net-deft.so"}}},
            {"nccl", {{"version", 22809}, {"path", "/lib/libnccl.so.2"}}},
            {"host", rank % 2 == 0 ? "left" : "right"},
            {"rank", rank},
            {"ranks", ranks},
            {"pid", 100 + rank},
            {"mode", "observe"},
            {"calls", {{"ncclAllReduce", 90}, {"ncclBroadcast", 10}}},
            {"plugin", {{"loaded", true}, {"abi", 11}, {"calls", 5000}}},
            {"iterations",
             {{"seen", 44},
              {"cycle_length", 2},
              {"stable", true},
              {"time_ms", quantiles(200 * slower)},
              {"coverage_rate", quantiles(0.75)}}},
            {"buckets",
             {{{"position", 0},
               {"communicator", "c0ffee"},
               {"bytes", 8224000},
               {"count", 2056000},
               {"type", "float32"},
               {"op", "sum"},
               {"in_place", true},
               {"ready_ms", quantiles(30 * slower)},
               {"transfer_ms", quantiles(65.792)}},
              {{"position", 1},
               {"communicator", "c0ffee"},
               {"bytes", 23987200},
               {"count", 5996800},
               {"type", "float32"},
               {"op", "sum"},
               {"in_place", true},
               {"ready_ms", quantiles(100 * slower)},
               {"transfer_ms", json{{"median", nullptr}, {"n", 0}}}}}},
            {"links",
             {{{"name", "eth0"},
               {"kind", "tcp"},
               {"bytes_sent", 1048576},
               {"bytes_received", 2097152},
               {"chunks_sent", 16},
               {"busy_ms", 12.5},
               {"resent_bytes", 0},
               {"transitions", 0},
               {"speed_mbps", 2000}}}}};
}

ObserveFile parsed(const json& text, const std::string& path) {
    return parse_observe_file(path, text.dump());
}

}  // namespace deft::tools
