// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/finding.h"

#include <algorithm>
#include <array>

namespace deft::tools::doctor {
namespace {

constexpr auto kKinds = std::to_array<FindingKind>({
#define DEFT_FINDING(key, name, severity, meaning, remedy) \
    {Finding::key, name, Severity::severity, meaning, remedy},
#include "tools/doctor/findings.def"
#undef DEFT_FINDING
});

}  // namespace

const char* to_string(Severity severity) {
    switch (severity) {
        case Severity::Error:
            return "error";
        case Severity::Warning:
            return "warning";
        case Severity::Note:
            return "note";
    }
    return "";
}

std::span<const FindingKind> finding_kinds() {
    return kKinds;
}

const FindingKind& kind_of(Finding finding) {
    return kKinds[static_cast<std::size_t>(finding)];
}

void sort_by_severity(Diagnoses& diagnoses) {
    std::stable_sort(diagnoses.begin(), diagnoses.end(),
                     [](const Diagnosis& left, const Diagnosis& right) {
                         const auto rank = [](const Diagnosis& each) {
                             return std::pair(kind_of(each.finding).severity, each.finding);
                         };
                         return rank(left) < rank(right);
                     });
}

int exit_code(const Diagnoses& diagnoses) {
    Severity worst = Severity::Note;
    for (const Diagnosis& each : diagnoses) {
        worst = std::min(worst, kind_of(each.finding).severity);
    }
    switch (worst) {
        case Severity::Error:
            return 3;
        case Severity::Warning:
            return 1;
        case Severity::Note:
            return 0;
    }
    return 0;
}

}  // namespace deft::tools::doctor
