// SPDX-License-Identifier: Apache-2.0
#include "shim/control/guard_settings.h"

#include "base/config.h"
#include "shim/settings/optimizer.h"
#include "shim/settings/settings.h"

namespace deft::director {

guard::Settings guard_settings() {
    const Config& config = Config::process();
    guard::Settings settings;
    settings.mode = config.is(Key::Guard, "off")    ? guard::Mode::Off
                    : config.is(Key::Guard, "warn") ? guard::Mode::Warn
                                                    : guard::Mode::Strict;
    const executor::Optimizer optimizer = known_optimizer();
    // COVAP delivers every gradient, if late, and a plan that is named is carried out.
    settings.merging_priced =
        planning_mode() == ShimMode::Deft && Settings::process().forced_merge == 0;
    settings.heavy_ball = optimizer.family == executor::Optimizer::Family::Sgd &&
                          optimizer.momentum > 0 && !optimizer.nesterov;
    return settings;
}

}  // namespace deft::director
