// SPDX-License-Identifier: Apache-2.0
#include "shim/settings/text_settings.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "shim/agreement/seal.h"
#include "shim/executor/prediction.h"
#include "shim/settings/networks.h"
#include "topology/listening.h"

namespace deft::executor {

std::vector<TextProblem> text_problems(const Config& config, bool files) {
    std::vector<TextProblem> problems;
    const auto complain = [&](Key key, const std::string& what) {
        const Setting& setting = config.setting(key);
        problems.push_back({key, std::string(variable(key).name) + "='" + setting.text + "' (" +
                                     setting.origin + "): " + what});
    };
    std::string problem;
    Optimizer optimizer;
    if (!parse_optimizer(config.text(Key::Optimizer), optimizer, problem)) {
        complain(Key::Optimizer,
                 problem + "; expects for instance sgd:momentum=0.9,lr=0.1, adam or adamw");
    }
    Prediction prediction;
    if (!parse_prediction(config.text(Key::Predict), optimizer, 1, 1, prediction, problem)) {
        complain(Key::Predict, "expects auto, none, lead:0..10, quad or damp:0..1");
    }
    PortRange ports;
    if (!parse_ports(config.text(Key::Ports), ports)) {
        complain(Key::Ports, "expects FIRST-LAST, two numbers from 1 to 65535");
    }
    std::vector<std::string> networks;
    if (!parse_networks(config.text(Key::Lanes), networks, problem)) {
        complain(Key::Lanes, problem + "; expects NCCL's names, for instance IB or Socket,deft");
    }
    const std::string& library = config.text(Key::NcclLibrary);
    if (files && library.find('/') != library.npos && ::access(library.c_str(), R_OK) != 0) {
        complain(Key::NcclLibrary,
                 std::string(std::strerror(errno)) + "; name NCCL's libnccl.so.2 or leave it out");
    }
    std::string secret;
    const std::string& secret_file = config.text(Key::SecretFile);
    if (files && !secret_file.empty() && !agreement::read_secret(secret_file, secret, problem)) {
        complain(Key::SecretFile, problem);
    }
    return problems;
}

}  // namespace deft::executor
