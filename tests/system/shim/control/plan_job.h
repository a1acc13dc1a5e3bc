// SPDX-License-Identifier: Apache-2.0
// Runs plan_main as the ranks of a job and reads what their updates received.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <utility>

#include "tests/system/shim/process.h"

namespace deft::test {

struct Row {
    int iteration = 0;
    std::int64_t bucket[2] = {0, 0};
};

struct Job {
    std::vector<Outcome> ranks;
    std::vector<std::vector<Row>> rows;  // by rank
};

inline std::vector<Started> start_ranks(const Folder& folder, int ranks, int iterations,
                                        const Environment& extra, const std::string& how,
                                        const std::map<int, Environment>& own = {}) {
    std::vector<Started> started;
    for (int rank = 0; rank < ranks; ++rank) {
        Environment environment{
            {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_HOSTID", "host" + std::to_string(rank)},
            {"DEFT_INTERFACES", "lo"},    {"DEFT_LOG", "info"},
            {"DEFT_WARMUP", "10"},        {"LD_PRELOAD", PRELOAD},
            {"NCCL_NET_PLUGIN", PRELOAD}, {"DEFT_GRADIENTS", "trust"}};
        for (const auto& [key, value] : extra) {
            environment[key] = value;
        }
        if (const auto mine = own.find(rank); mine != own.end()) {
            environment.insert(mine->second.begin(), mine->second.end());
        }
        std::vector<std::string> command{PLAN_MAIN, std::to_string(rank), std::to_string(ranks),
                                         folder / "id", std::to_string(iterations)};
        if (!how.empty()) {
            command.push_back(how);
        }
        started.push_back(start(command, environment, folder, "rank" + std::to_string(rank)));
    }
    return started;
}

inline Job finish_ranks(const std::vector<Started>& started, const Folder& folder) {
    Job job;
    for (const Started& rank : started) {
        job.ranks.push_back(finish(rank, folder));
        std::istringstream lines(job.ranks.back().out);
        std::vector<Row> rows;
        for (std::string line; std::getline(lines, line);) {
            Row row;
            double first = -1;
            double second = -1;
            if (std::sscanf(line.c_str(), "%d %lf %lf", &row.iteration, &first, &second) == 3) {
                row.bucket[0] = static_cast<std::int64_t>(first);
                row.bucket[1] = static_cast<std::int64_t>(second);
                rows.push_back(row);
            }
        }
        job.rows.push_back(std::move(rows));
    }
    return job;
}

inline Job run(int ranks, int iterations, const Environment& extra, const std::string& how = "") {
    const Folder folder;
    return finish_ranks(start_ranks(folder, ranks, iterations, extra, how), folder);
}

// What a rank says of its plan in the report that DEFT_OUT=rank%r.json in the job's folder names.
inline nlohmann::json plan_of(const Job& job, int rank) {
    const auto& reports = job.ranks.back().reports;
    const auto report = reports.find("rank" + std::to_string(rank) + ".json");
    if (report == reports.end() || !report->second.is_object() ||
        report->second["plans"].size() != 1) {
        ADD_FAILURE() << "rank " << rank << " tells of no plan, or of several";
        return nlohmann::json::object();
    }
    return report->second["plans"][0];
}

// All ranks ended well and their updates received the same numbers. None has warned, but of
// `may_warn`.
inline void expect_sound(const Job& job, const char* may_warn = nullptr) {
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        ASSERT_EQ(job.ranks[rank].status, 0) << job.ranks[rank].out << job.ranks[rank].err;
        EXPECT_EQ(count(job.ranks[rank].out, "lost"), 0u) << job.ranks[rank].err;
        std::istringstream said(job.ranks[rank].err);
        for (std::string line; std::getline(said, line);) {
            EXPECT_TRUE(line.find("WARN") == std::string::npos ||
                        (may_warn != nullptr && line.find(may_warn) != std::string::npos))
                << line;
        }
        EXPECT_EQ(count(job.ranks[rank].err, "softdev: error"), 0u) << job.ranks[rank].err;
        EXPECT_EQ(job.ranks[rank].out, job.ranks[0].out) << "replicas differ";
        ASSERT_FALSE(job.rows[rank].empty());
    }
}

// What both buckets of the row before and after a line of its own held.
inline std::pair<Row, Row> around(const Job& job, const std::string& line) {
    std::istringstream lines(job.ranks[0].out);
    std::pair<Row, Row> rows;
    bool seen = false;
    for (std::string text; std::getline(lines, text);) {
        Row row;
        if (text.starts_with(line)) {
            seen = true;
        } else if (std::sscanf(text.c_str(), "%d %ld %ld", &row.iteration, &row.bucket[0],
                               &row.bucket[1]) == 3) {
            (seen ? rows.second : rows.first) = row;
            if (seen) {
                return rows;
            }
        }
    }
    ADD_FAILURE() << "no line " << line;
    return rows;
}

// Gradients are whole numbers t + 1, so sums of what has been delivered tell which they were:
// every gradient once, in order, in whole generations. Returns how many of each lag were seen.
inline std::map<int, int> lags(const std::vector<Row>& rows, int bucket) {
    std::map<int, int> seen;
    std::int64_t delivered = 0;
    std::int64_t sent = 0;
    int upto = 0;  // gradients 0..upto-1 have been delivered
    for (const Row& row : rows) {
        delivered += row.bucket[bucket];
        while (sent < delivered && upto <= row.iteration) {
            sent += ++upto;
        }
        EXPECT_EQ(sent, delivered)
            << "iteration " << row.iteration << ": no whole gradients in order";
        if (sent != delivered) {
            break;
        }
        ++seen[row.iteration + 1 - upto];
    }
    if (seen.empty()) {
        ADD_FAILURE() << "no iterations";
        seen[0] = 0;
    }
    return seen;
}

}  // namespace deft::test
