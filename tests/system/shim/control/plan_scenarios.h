// SPDX-License-Identifier: Apache-2.0
// What plan_main is asked to do, by name.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace deft::test {

// When the iterations that are counted begin: behind the first plan in force on all ranks, at once,
// or behind the file ID_FILE.stop.
enum class Counted { UnderPlan, AtOnce, BehindStop };

enum class Making { Usual, Nonblocking, Scalable, Split };

// The sizes of the two buckets: they stay, change when the iterations have been counted once,
// change every ten iterations and never come back, or do as recurring.h says.
enum class Sizes { Constant, ChangeOnce, Unsteady, Recurring };

// In one iteration in the middle of those that are counted.
enum class Middle {
    Nothing,
    CutOff,
    FillMemory,
    Pair,
    Premultiplied,
    ForeignStream,
    Grow,
    Dies,
    CutLanes
};

enum class Ending { Destroy, Abort, Busy, Stall, Shrink, Revoke };

struct Scenario {
    std::string_view name;
    Counted counted = Counted::UnderPlan;
    std::size_t first = 50'001;  // numbers in the buckets
    std::size_t second = 70'000;
    Making making = Making::Usual;
    Sizes sizes = Sizes::Constant;
    Middle middle = Middle::Nothing;
    Ending ending = Ending::Destroy;
    bool doubled = false;    // every gradient is reduced by an operation that doubles it
    bool grouped = false;    // every call is in a group of its own, two levels deep
    bool flushes = false;    // calls deft_flush(), and then counts the iterations once more
    bool suspends = false;   // suspends and resumes its communicator, and then counts them again
    bool simulates = false;  // rank 1 alone has a group simulated
    bool asks = false;       // calls deft_should_step()
    bool unheard = false;    // the last rank loses its leader before it hears of a plan's begin
    bool frees = false;      // ranks wait for the whole device, each in another place
    bool crowded = false;    // takes most of the device's memory before it begins
    std::size_t biases = 0;  // numbers of a sum between the buckets, too small for plans
    int stalls_at = -1;      // iteration; -1: the last one
};

inline constexpr std::size_t kMedium = 1'000'001;  // is cut over networks
inline constexpr std::size_t kLarge = 4'000'001;

inline constexpr Scenario kScenarios[] = {
    {.name = ""},
    {.name = "abort", .ending = Ending::Abort},
    {.name = "busy", .ending = Ending::Busy},
    {.name = "change", .sizes = Sizes::ChangeOnce},
    {.name = "crowded", .counted = Counted::AtOnce, .crowded = true},
    {.name = "cut lanes", .first = kMedium, .middle = Middle::CutLanes},
    {.name = "cut off", .middle = Middle::CutOff},
    {.name = "dies", .first = kMedium, .middle = Middle::Dies},
    {.name = "dies grouped", .first = kMedium, .middle = Middle::Dies, .grouped = true},
    {.name = "fill", .middle = Middle::FillMemory},
    {.name = "flush", .flushes = true},
    {.name = "foreign", .middle = Middle::ForeignStream},
    {.name = "frees medium", .first = kMedium, .frees = true},
    {.name = "grouped", .grouped = true},
    {.name = "grow", .middle = Middle::Grow},
    {.name = "large", .first = kLarge},
    {.name = "pair", .middle = Middle::Pair},
    {.name = "plain", .counted = Counted::AtOnce},
    {.name = "plain equal", .counted = Counted::AtOnce, .second = 50'001},
    {.name = "plain foreign", .counted = Counted::AtOnce, .middle = Middle::ForeignStream},
    {.name = "plain grouped premul", .counted = Counted::AtOnce, .doubled = true, .grouped = true},
    {.name = "plain large", .counted = Counted::AtOnce, .first = kLarge},
    {.name = "plain medium", .counted = Counted::AtOnce, .first = kMedium},
    {.name = "plain nonblocking", .counted = Counted::AtOnce, .making = Making::Nonblocking},
    {.name = "plain premul", .counted = Counted::AtOnce, .doubled = true},
    {.name = "premul", .middle = Middle::Premultiplied},
    {.name = "recurring", .sizes = Sizes::Recurring},
    {.name = "revoke", .ending = Ending::Revoke},
    {.name = "scalable", .making = Making::Scalable},
    {.name = "shrink", .ending = Ending::Shrink},
    {.name = "simulate", .simulates = true},
    {.name = "split", .making = Making::Split},
    {.name = "stall", .ending = Ending::Stall},
    {.name = "step", .asks = true},
    {.name = "suspend", .suspends = true},
    {.name = "suspend medium", .first = kMedium, .suspends = true},
    {.name = "step biased", .asks = true, .biases = 100},
    {.name = "unheard", .counted = Counted::AtOnce, .unheard = true},
    {.name = "unsteady", .counted = Counted::AtOnce, .sizes = Sizes::Unsteady},
    {.name = "until", .counted = Counted::BehindStop},
    {.name = "until abort", .counted = Counted::BehindStop, .ending = Ending::Abort},
    {.name = "until medium", .counted = Counted::BehindStop, .first = kMedium},
};

// "stall-N" is the scenario "stall" in iteration N. Nothing: there is none of this name.
inline std::optional<Scenario> find_scenario(const std::string& how) {
    constexpr std::string_view kStall = "stall-";
    const bool stalls = how.starts_with(kStall);
    const std::string_view name = stalls ? kStall.substr(0, kStall.size() - 1) : how;
    for (const Scenario& each : kScenarios) {
        if (each.name == name) {
            Scenario found = each;
            if (stalls) {
                found.stalls_at = std::atoi(how.c_str() + kStall.size());
            }
            return found;
        }
    }
    return std::nullopt;
}

}  // namespace deft::test
