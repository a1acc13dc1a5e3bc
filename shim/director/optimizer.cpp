// SPDX-License-Identifier: Apache-2.0
#include "shim/director/optimizer.h"

#include <mutex>

#include "topology/base/config.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

struct Told {
    std::mutex mutex;
    std::string text;
    executor::Optimizer optimizer;
};

Told& told() {
    static auto& told = *new Told;  // never destroyed: threads may outlive exit()
    return told;
}

}  // namespace

bool set_optimizer(std::string_view text) noexcept {
    try {
        executor::Optimizer optimizer;
        std::string problem;
        if (!executor::parse_optimizer(text, optimizer, problem)) {
            return false;
        }
        Told& all = told();
        const std::lock_guard lock(all.mutex);
        if (all.text != text) {
            all.text = text;
            all.optimizer = optimizer;
            DEFT_INFO("the job's optimizer: %s", all.text.c_str());
        }
        return true;
    } catch (...) {
        return false;
    }
}

executor::Optimizer known_optimizer() {
    const std::string& set = Config::process().text(Key::Optimizer);
    executor::Optimizer optimizer;
    std::string problem;
    if (!set.empty()) {
        if (!executor::parse_optimizer(set, optimizer, problem)) {
            DEFT_WARN_ONCE("DEFT_OPTIMIZER: %s; it counts as unknown", problem.c_str());
            return {};
        }
        return optimizer;
    }
    Told& all = told();
    const std::lock_guard lock(all.mutex);
    return all.optimizer;
}

}  // namespace deft::director
