// SPDX-License-Identifier: Apache-2.0
#include "tools/interfaces_check.h"

#include "topology/interfaces.h"

namespace deft::tools {

std::string interfaces_problem(const Config& config) {
    const Setting& setting = config.setting(Key::Interfaces);
    if (setting.text.empty()) {
        return {};
    }
    // The plugin's own selection: what passes here is not refused when the job has begun.
    const std::string name = variable(Key::Interfaces).name;
    const bool file = setting.source != ValueSource::Environment;
    return select_interfaces(list_interfaces(), setting.text,
                             file ? name + " (" + setting.origin + ")" : name, true)
        .problem;
}

}  // namespace deft::tools
