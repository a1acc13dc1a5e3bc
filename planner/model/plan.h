// SPDX-License-Identifier: Apache-2.0
// What a policy decided: which bytes travel when and where, and which gradients each update gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/options.h"
#include "planner/model/profile.h"

namespace deft::planner {

enum class Operation : std::uint8_t { AllReduce, ReduceScatter, AllGather };
// Compute stage of the cycle in which a transfer may start at the earliest.
enum class Stage : std::uint8_t { Backward, Forward };

// The gradients of iterations [first, first + count) summed; numbered from the start of the
// period, negative for the periods before.
struct Generation {
    std::int32_t first = 0;
    std::uint32_t count = 1;

    std::int32_t newest() const { return first + static_cast<std::int32_t>(count) - 1; }
    bool operator==(const Generation&) const = default;
};

struct Transfer {
    std::uint32_t bucket = 0;
    Generation generation{};
    std::uint64_t begin = 0;  // bytes [begin, end) of the bucket
    std::uint64_t end = 0;
    std::uint32_t link = 0;
    Operation operation = Operation::AllReduce;
    std::uint32_t iteration = 0;  // cycle of the period in which it starts
    Stage stage = Stage::Backward;
    std::uint32_t order = 0;    // launch order over the whole period, the same on every rank
    std::uint32_t message = 0;  // transfers with one number travel as one message (fusion)
    double start = 0;           // predicted, seconds from the start of the period
    double finish = 0;

    std::uint64_t bytes() const { return end - begin; }
    bool operator==(const Transfer&) const = default;
};

// What the update of one iteration receives for bytes [begin, end) of a bucket. Bytes no delivery
// names receive zeros in that iteration.
struct Delivery {
    std::uint32_t iteration = 0;
    std::uint32_t bucket = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    Generation generation{};

    // Iterations between the newest gradient delivered and the update that uses it.
    std::uint32_t delay() const {
        return static_cast<std::uint32_t>(static_cast<std::int32_t>(iteration) -
                                          generation.newest());
    }
    bool operator==(const Delivery&) const = default;
};

enum class Verdict : std::uint8_t {
    Keep,    // no plan beats the job as it is by more than the noise
    Use,     // it does
    Unsafe,  // it would, but leaves the caps or the accuracy bound
};

struct Prediction {
    double iteration = 0;         // seconds, mean over the period
    double updates = 1;           // updates per iteration: whole generations delivered
    std::uint32_t max_delay = 0;  // iterations, newest gradient
    std::uint32_t max_age = 0;    // iterations, oldest gradient
    std::uint32_t max_merge = 1;
    double mean_age = 0;           // iterations, over bytes and the gradients in them
    double late = 0;               // part of the delivered bytes whose newest gradient is late
    double progress = 1;           // synchronous updates that an iteration is worth (progress.h)
    double bound = 0;              // no plan of this kind can be faster, seconds per iteration
    double gap = 0;                // iteration / bound - 1
    double exposed = 0;            // seconds per iteration compute waits for links
    double baseline = 0;           // the job as it is, seconds per iteration
    std::vector<double> cycles{};  // start of backward of each iteration of the period, seconds
    Verdict verdict = Verdict::Use;

    // Updates get a part of their bytes late and a part in time.
    bool mixed_ages() const { return late > 0 && late < 1; }
    bool late_or_merged() const { return max_delay > 0 || max_merge > 1; }

    bool operator==(const Prediction&) const = default;
};

struct Plan {
    static constexpr std::uint32_t kVersion = 1;

    std::string policy;
    std::string origin;        // of `best`: the policy whose plan it is
    std::uint32_t period = 1;  // iterations after which everything repeats
    Barrier barrier = Barrier::Update;
    std::vector<std::uint64_t> bucket_bytes;  // what it was made for
    std::vector<std::string> links;           // names, by index
    std::vector<Transfer> transfers;          // in launch order
    std::vector<Delivery> deliveries;         // by iteration, bucket, begin
    Prediction predicted{};

    bool operator==(const Plan&) const = default;

    // "best (mixed-ages)" where `best` took the plan of another policy, else the policy.
    std::string name() const { return origin.empty() ? policy : policy + " (" + origin + ")"; }

    // Whether every update gets the generations it gets of all buckets, as a job's own clipping and
    // statistics expect; not so where buckets take turns, as in COVAP's.
    bool complete_generations() const;

    // Whether every update gets all bytes or none, of whatever age: a global norm is then one over
    // the whole model, though over gradients of different iterations where ages are mixed.
    bool whole_updates() const;

    // 64-bit FNV-1a over everything that must agree between ranks (predicted times left out).
    std::uint64_t fingerprint() const;
};

// The whole gradient of every bucket of iteration 0, delivered by its own update: deliveries of
// every policy that changes no numbers.
std::vector<Delivery> synchronous_deliveries(const Profile& profile);

const char* to_string(Operation operation);
const char* to_string(Stage stage);
const char* to_string(Barrier barrier);
const char* to_string(Verdict verdict);

}  // namespace deft::planner
