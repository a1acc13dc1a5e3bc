// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/faults.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>

#include "base/mutex.h"

namespace softdev::verbs {
namespace {

constexpr std::size_t kFaults = static_cast<std::size_t>(Fault::count);
constexpr std::array<const char*, kFaults> kNames = {
    "lose_acks",   "resend",  "late_write",    "reg_fails",  "event_missing", "event_late",
    "modify_slow", "shuffle", "complete_late", "flush_lost", "gpu_late"};
constexpr std::array<int, kFaults> kUsualMs = {0, 20, 300, 0, 0, 500, 1000, 0, 20, 0, 500};

// When a fault happens: at the occasion of that number, or at each with that chance.
struct Trigger {
    long at = 0;
    double chance = 0;
    int ms = 0;
};

struct Plan {
    std::array<Trigger, kFaults> triggers;
    std::mt19937_64 random;
    std::array<long, kFaults> occasions{};

    Plan() {
        for (std::size_t i = 0; i < kFaults; ++i) {
            triggers[i].ms = kUsualMs[i];
        }
    }
};

deft::Mutex mutex;
std::array<std::atomic<long>, kFaults> counts{};

bool read_number(const std::string& text, double low, double high, double& value) {
    char* end = nullptr;
    value = std::strtod(text.c_str(), &end);
    return end != text.c_str() && *end == '\0' && value >= low && value <= high;
}

bool read_trigger(std::string text, Trigger& trigger) {
    double value = 0;
    if (!text.empty() && text.back() == '%') {
        text.pop_back();
        trigger.chance = read_number(text, 0, 100, value) ? value / 100 : -1;
        return trigger.chance >= 0;
    }
    trigger.at = read_number(text, 1, 1e15, value) ? static_cast<long>(value) : 0;
    return trigger.at > 0;
}

bool read_item(const std::string& name, const std::string& text, Plan& plan) {
    double value = 0;
    if (name == "seed") {
        const bool good = read_number(text, 0, 1e15, value);
        plan.random.seed(static_cast<std::uint64_t>(value));
        return good;
    }
    for (std::size_t i = 0; i < kFaults; ++i) {
        if (name == kNames[i]) {
            return read_trigger(text, plan.triggers[i]);
        }
        if (name == std::string(kNames[i]) + "_ms") {
            const bool good = read_number(text, 0, 1e6, value);
            plan.triggers[i].ms = static_cast<int>(value);
            return good;
        }
    }
    return false;
}

bool parse(const std::string& text, Plan& plan, std::string& error) {
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, ',');) {
        const std::size_t equals = item.find('=');
        if (equals == std::string::npos ||
            !read_item(item.substr(0, equals), item.substr(equals + 1), plan)) {
            error = "SOFTDEV_VERBS_FAULTS: '" + item + "' is no fault, or has no such value";
            return false;
        }
    }
    return true;
}

// Read from the environment at the first question.
Plan& plan_of_process() DEFT_REQUIRES(mutex) {
    static Plan* const plan = [] {
        auto* const made =
            new Plan;  // lives as long as the process: its threads may outlive main()
        const char* const text = std::getenv("SOFTDEV_VERBS_FAULTS");
        std::string error;
        if (text != nullptr && !parse(text, *made, error)) {
            std::fprintf(stderr, "softverbs: %s\n", error.c_str());
            std::_Exit(2);  // a test without its faults would prove nothing
        }
        return made;
    }();
    return *plan;
}

}  // namespace

bool set_faults(const std::string& text, std::string& error) {
    Plan plan;
    if (!parse(text, plan, error)) {
        return false;
    }
    const deft::MutexLock lock(mutex);
    plan_of_process() = plan;
    return true;
}

bool inject(Fault fault) {
    const auto index = static_cast<std::size_t>(fault);
    const deft::MutexLock lock(mutex);
    Plan& plan = plan_of_process();
    const Trigger& trigger = plan.triggers[index];
    const long occasion = ++plan.occasions[index];
    bool happens = occasion == trigger.at;
    if (trigger.chance > 0) {
        happens = std::uniform_real_distribution<>(0, 1)(plan.random) < trigger.chance;
    }
    if (happens) {
        counts[index].fetch_add(1);
    }
    return happens;
}

int milliseconds(Fault fault) {
    const deft::MutexLock lock(mutex);
    return plan_of_process().triggers[static_cast<std::size_t>(fault)].ms;
}

long injected(const std::string& name) {
    for (std::size_t i = 0; i < kFaults; ++i) {
        if (name == kNames[i]) {
            return counts[i].load();
        }
    }
    return -1;
}

}  // namespace softdev::verbs
