// SPDX-License-Identifier: Apache-2.0
// Links over UCX, where they were asked for: why there are none.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/doctor/judge.h"

namespace deft::tools::doctor {
namespace {

using discovery::Ucx;

std::string evidence_of(const Ucx& ucx) {
    std::string text = "DEFT_UCX=on";
    text += ucx.module.empty() ? "" : ", " + ucx.module;
    text += ucx.version.empty() ? "" : ", UCX " + ucx.version;
    return text +
           (ucx.devices.empty() ? "" : fmt::format(", it has {}", fmt::join(ucx.devices, " ")));
}

// Of the devices that are named: those that UCX has not.
void judge_devices(const Ucx& ucx, Diagnoses& found) {
    for (const discovery::UcxLink& link : ucx.links) {
        if (!link.obstacle.empty()) {
            const std::string name =
                link.name.empty() ? "" : fmt::format("DEFT_UCX_DEVICES names {}: ", link.name);
            found.push_back({Finding::UcxDevice, name + link.obstacle, evidence_of(ucx), ""});
        }
    }
}

}  // namespace

void judge_ucx(const Facts& facts, Diagnoses& found) {
    if (!facts.ucx || !facts.ucx->asked) {
        return;
    }
    const Ucx& ucx = *facts.ucx;
    const auto add = [&](Finding finding, const char* remedy) {
        found.push_back({finding, ucx.problem, evidence_of(ucx), remedy});
    };
    switch (ucx.obstacle) {
        case Ucx::Obstacle::None:
            break;
        case Ucx::Obstacle::Unprepared:
            add(Finding::UcxUnprepared, "");
            break;
        case Ucx::Obstacle::NoModule:
            add(Finding::UcxMissing, "install a build of deft that has it, or unset DEFT_UCX");
            break;
        case Ucx::Obstacle::NoLibrary:
            add(Finding::UcxMissing,
                "install UCX (libucx0, ucx), or put its folder into LD_LIBRARY_PATH");
            break;
        case Ucx::Obstacle::OtherBuild:
            add(Finding::UcxVersion, "");
            break;
        case Ucx::Obstacle::NoAnswer:
            add(Finding::UcxBroken, "");
            break;
        case Ucx::Obstacle::NoDevice:
            judge_devices(ucx, found);
            break;
    }
}

}  // namespace deft::tools::doctor
