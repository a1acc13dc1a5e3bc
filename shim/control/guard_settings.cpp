// SPDX-License-Identifier: Apache-2.0
#include "shim/control/guard_settings.h"

#include "base/config.h"
#include "shim/settings/optimizer.h"

namespace deft::director {

guard::Settings guard_settings() {
    const Config& config = Config::process();
    guard::Settings settings;
    settings.mode = config.is(Key::Guard, "off")    ? guard::Mode::Off
                    : config.is(Key::Guard, "warn") ? guard::Mode::Warn
                                                    : guard::Mode::Strict;
    const executor::Optimizer optimizer = known_optimizer();
    settings.learning_rate = optimizer.learning_rate;
    settings.momentum = optimizer.momentum;
    settings.heavy_ball = optimizer.family == executor::Optimizer::Family::Sgd &&
                          optimizer.momentum > 0 && !optimizer.nesterov;
    return settings;
}

}  // namespace deft::director
