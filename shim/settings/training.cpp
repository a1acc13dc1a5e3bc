// SPDX-License-Identifier: Apache-2.0
#include "shim/settings/training.h"

#include <deque>
#include <utility>

#include "base/config.h"
#include "base/mutex.h"
#include "shim/settings/companion.h"
#include "shim/settings/latest_modules.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

// Not taken: of a job that makes modules without end, or where nobody plans.
constexpr std::size_t kMostModules = 64;
constexpr std::size_t kMostKept = 256;
constexpr std::uint32_t kNormEvery = 2;   // iterations, while nothing is late
constexpr std::uint32_t kNormsLate = 24;  // iterations of a plan, from its beginning

struct Module {
    std::deque<executor::Training> told;
    std::uint32_t synchronous = 0;  // iterations, without end
    std::uint32_t late = 0;         // of the plan in force
};

struct Told {
    Mutex mutex;
    LatestModules<Module, kMostModules> modules DEFT_GUARDED_BY(mutex);
};

Told& told() {
    static auto& told = *new Told;  // never destroyed: threads may outlive exit()
    return told;
}

}  // namespace

bool training_wanted() noexcept {
    static const bool wanted = [] {
        const Config& config = Config::process();
        return !config.is(Key::Guard, "off") && cap_named(config);
    }();
    return wanted && companion_proves();
}

bool norm_wanted(std::uint32_t number, bool late) noexcept {
    try {
        Told& all = told();
        const MutexLock lock(all.mutex);
        Module& module = all.modules.of(number);
        if (!late) {
            module.late = 0;
            return module.synchronous++ % kNormEvery == 0;
        }
        return module.late++ < kNormsLate;
    } catch (...) {
        return false;
    }
}

void note_training(std::uint32_t number, const executor::Training& training) noexcept {
    try {
        Told& all = told();
        const MutexLock lock(all.mutex);
        Module& module = all.modules.of(number);
        module.told.push_back(training);
        if (module.told.size() > kMostKept) {
            module.told.pop_front();
        }
    } catch (...) {
    }
}

std::vector<executor::Training> take_training(std::uint32_t number) {
    Told& all = told();
    const MutexLock lock(all.mutex);
    Module* const module = all.modules.find(number);
    if (module == nullptr) {
        return {};
    }
    const std::deque<executor::Training> taken = std::exchange(module->told, {});
    return {taken.begin(), taken.end()};
}

}  // namespace deft::director
