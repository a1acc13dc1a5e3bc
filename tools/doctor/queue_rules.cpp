// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/queue_rules.h"

#include <sstream>

namespace deft::tools::doctor {
namespace {

// Those that only share or order what passes say nothing of a limit.
bool limits(const std::string& kind, const std::string& rest) {
    return kind == "netem" || kind == "tbf" ||
           (kind == "cake" && rest.find("unlimited") == rest.npos);
}

}  // namespace

// qdisc KIND HANDLE: dev NAME root refcnt 2 OPTION...
std::map<std::string, std::string> shaped_links(const std::string& text) {
    std::map<std::string, std::string> shaped;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string qdisc, kind, handle, dev, name;
        if (!(words >> qdisc >> kind >> handle >> dev >> name) || qdisc != "qdisc") {
            continue;
        }
        std::string rest;
        for (std::string word; words >> word;) {
            if (word == "refcnt" || word == "parent") {
                words >> word;
            } else if (word != "root") {
                rest += " " + word;
            }
        }
        if (limits(kind, rest)) {
            shaped[name] = kind + rest;
        }
    }
    return shaped;
}

}  // namespace deft::tools::doctor
