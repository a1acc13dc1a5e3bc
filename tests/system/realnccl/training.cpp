// SPDX-License-Identifier: Apache-2.0
// Data-parallel jobs: buckets in every iteration, one large sum, graphs, communicators that do not
// block.
#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "tests/system/realnccl/job.h"
#include "tests/system/shim/ways.h"

namespace deft::test {
namespace {

constexpr std::size_t kBuckets[] = {25'000, 100'000, 200'000, 50'001};

struct Bucket {
    explicit Bucket(std::size_t count) : memory(count * sizeof(float)), host(count) {}
    Memory memory;
    std::vector<float> host;
};

std::vector<std::unique_ptr<Bucket>> make_buckets() {
    std::vector<std::unique_ptr<Bucket>> all;
    for (const std::size_t count : kBuckets) {
        all.push_back(std::make_unique<Bucket>(count));
    }
    return all;
}

void reduce_bucket(const Job& job, Bucket& bucket, int round) {
    fill(bucket.host, job.rank, round);
    bucket.memory.put(bucket.host.data(), job.stream);
    all_reduce(job, bucket.memory, bucket.host.size());
}

void say_begun(int round) {
    if (round == 0) {
        std::fputs("begun\n", stderr);
    }
}

// Four buckets in every iteration.
void buckets(Job& job, int iterations) {
    job.join();
    const auto all = make_buckets();
    Tally tally;
    for (int round = 0; round < iterations; ++round) {
        for (const auto& bucket : all) {
            reduce_bucket(job, *bucket, round);
        }
        for (const auto& bucket : all) {
            bucket->memory.take(bucket->host.data(), job.stream);
            compare(bucket->host, job.ranks, round, tally);
        }
        say_begun(round);
    }
    job.leave();
    tally.say();
}

// What a bucket may have received where sums come late: all that were given up to one of the last
// rounds, each of them once.
class Received {
public:
    explicit Received(std::size_t count) : total_(count), given_(1, std::vector<float>(count)) {}

    void add(const std::vector<float>& sums, int ranks, int round, Tally& tally) {
        std::vector<float> next = given_.back();
        for (std::size_t i = 0; i < next.size(); ++i) {
            next[i] += gradient_sum(ranks, i, round);
            total_[i] += sums[i];
        }
        given_.push_back(std::move(next));
        std::size_t here = 0;  // the newest round that fits the first elements
        for (std::size_t at = 0; at < given_.size(); ++at) {
            if (given_[at][0] == total_[0] && given_[at][1] == total_[1]) {
                here = at;
            }
        }
        for (std::size_t i = 0; i < total_.size(); ++i) {
            tally.add(total_[i] == given_[here][i]);
        }
        given_.erase(given_.begin(), given_.begin() + static_cast<std::ptrdiff_t>(here));
    }
    /// Rounds whose sums are not there yet.
    std::size_t missing() const { return given_.size() - 1; }

private:
    std::vector<float> total_;
    std::deque<std::vector<float>> given_;  // sums of rounds, from what is there to what was given
};

// The same under a plan that delays updates, for so many iterations in which they are late. All
// ranks see the same ones.
void late_buckets(Job& job, int late_ones) {
    constexpr int kMost = 3000;
    job.join();
    const auto all = make_buckets();
    std::vector<Received> received;
    for (const std::size_t count : kBuckets) {
        received.emplace_back(count);
    }
    Tally tally;
    int late = 0;
    std::size_t latest = 0;
    for (int round = 0; late < late_ones && round < kMost; ++round) {
        for (const auto& bucket : all) {
            ::usleep(500);  // backward, until the bucket is complete
            reduce_bucket(job, *bucket, round);
        }
        bool any = false;
        for (std::size_t b = 0; b < all.size(); ++b) {
            all[b]->memory.take(all[b]->host.data(), job.stream);
            received[b].add(all[b]->host, job.ranks, round, tally);
            latest = std::max(latest, received[b].missing());
            if (received[b].missing() > 0) {
                any = true;
            }
        }
        late += any ? 1 : 0;
        say_begun(round);
    }
    job.leave();
    tally.say();
    std::printf("late in %d iterations, by at most %zu\n", late, latest);
}

void large(Job& job) {
    job.join();
    std::vector<float> host(4 << 20);
    const Memory memory(host.size() * sizeof(float));
    Tally tally;
    const int rounds = job.ranks > 3 ? 1 : 4;
    for (int round = 0; round < rounds; ++round) {
        fill(host, job.rank, round);
        memory.put(host.data(), job.stream);
        all_reduce(job, memory, host.size());
        memory.take(host.data(), job.stream);
        compare(host, job.ranks, round, tally);
    }
    job.leave();
    tally.say();
}

void capture(Job& job) {
    job.join();
    std::vector<float> host(100'000);
    const Memory memory(host.size() * sizeof(float));
    const Memory second(host.size() * sizeof(float));
    all_reduce(job, memory, host.size());  // connections are made outside of the capture
    job.wait();
    check(cuStreamBeginCapture(job.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin capture");
    all_reduce(job, memory, host.size());
    check(ncclGroupStart(), "ncclGroupStart");
    all_reduce(job, second, host.size());
    check(ncclGroupEnd(), "ncclGroupEnd");
    CUgraph graph = nullptr;
    check(cuStreamEndCapture(job.stream, &graph), "end capture");
    CUgraphExec exec = nullptr;
    check(cuGraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
    check(cuGraphDestroy(graph), "cuGraphDestroy");
    Tally tally;
    for (int round = 0; round < 20; ++round) {
        for (const Memory* each : {&memory, &second}) {
            fill(host, job.rank, round);
            each->put(host.data(), job.stream);
        }
        check(cuGraphLaunch(exec, job.stream), "cuGraphLaunch");
        for (const Memory* each : {&memory, &second}) {
            each->take(host.data(), job.stream);
            compare(host, job.ranks, round, tally);
        }
        if (round % 5 == 4) {  // work outside of the graph in between
            all_reduce(job, memory, 100);
        }
    }
    check(cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    job.leave();  // returns when the graph is gone
    tally.say();
}

void nonblocking(Job& job) {
    check(make_nonblocking(&job.comm, job.rank, job.ranks, job.id_file), "the start");
    std::vector<float> host(50'000);
    const Memory memory(host.size() * sizeof(float));
    Tally tally;
    for (int round = 0; round < 10; ++round) {
        fill(host, job.rank, round);
        memory.put(host.data(), job.stream);
        check(wait_done(ncclAllReduce(memory.get(), memory.get(), host.size(), ncclFloat, ncclSum,
                                      job.comm, job.stream),
                        job.comm),
              "the all-reduce");
        memory.take(host.data(), job.stream);
        compare(host, job.ranks, round, tally);
    }
    check(wait_done(ncclCommFinalize(job.comm), job.comm), "the end");
    job.leave();
    tally.say();
}

}  // namespace

Scenarios training() {
    return {
        {"buckets", [](Job& job) { buckets(job, 300); }},
        {"hundred-buckets", [](Job& job) { buckets(job, 100); }},
        {"few-buckets", [](Job& job) { buckets(job, 20); }},
        {"late-buckets", [](Job& job) { late_buckets(job, 300); }},
        {"hundred-late-buckets", [](Job& job) { late_buckets(job, 100); }},
        {"few-late-buckets", [](Job& job) { late_buckets(job, 30); }},
        {"large", large},
        {"capture", capture},
        {"nonblocking", nonblocking},
    };
}

}  // namespace deft::test
