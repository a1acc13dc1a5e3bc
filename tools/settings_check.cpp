// SPDX-License-Identifier: Apache-2.0
#include "tools/settings_check.h"

#include <fmt/format.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

#include "shim/executor/prediction.h"

namespace deft::tools {

std::vector<std::string> text_problems(const Config& config) {
    std::vector<std::string> problems;
    const auto complain = [&](Key key, const std::string& what) {
        const Setting& setting = config.setting(key);
        problems.push_back(fmt::format("{}='{}' ({}): {}", variable(key).name, setting.text,
                                       setting.origin, what));
    };
    // The same parsers as in the library, which warns and goes on without: here nothing has begun.
    std::string problem;
    executor::Optimizer optimizer;
    if (!executor::parse_optimizer(config.text(Key::Optimizer), optimizer, problem)) {
        complain(Key::Optimizer,
                 problem + "; expects for instance sgd:momentum=0.9,lr=0.1, adam or adamw");
    }
    executor::Prediction prediction;
    if (!executor::parse_prediction(config.text(Key::Predict), optimizer, 1, 1, prediction,
                                    problem)) {
        complain(Key::Predict, "expects auto, none, lead:0..10, quad or damp:0..1");
    }
    const std::string& library = config.text(Key::NcclLibrary);
    if (library.find('/') != library.npos && ::access(library.c_str(), R_OK) != 0) {
        complain(Key::NcclLibrary,
                 fmt::format("{}; name NCCL's libnccl.so.2 or leave it out", std::strerror(errno)));
    }
    return problems;
}

}  // namespace deft::tools
