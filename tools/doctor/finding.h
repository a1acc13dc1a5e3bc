// SPDX-License-Identifier: Apache-2.0
// What `deft doctor` can find, and one finding about something in particular.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace deft::tools::doctor {

enum class Severity : std::uint8_t {
    Error,    // deft is not at work in the job, or the job does not start
    Warning,  // deft is at work, with less than there is
    Note      // nothing is wrong
};
const char* to_string(Severity severity);

enum class Finding : std::uint8_t {
#define DEFT_FINDING(key, ...) key,
#include "tools/doctor/findings.def"
#undef DEFT_FINDING
};

// One row of the table. All strings are literals.
struct FindingKind {
    Finding finding;
    const char* name;
    Severity severity;
    const char* meaning;
    const char* remedy;
};
std::span<const FindingKind> finding_kinds();
const FindingKind& kind_of(Finding finding);

struct Diagnosis {
    Finding finding;
    std::string what;      // what and where, one line without a full stop
    std::string evidence;  // what was looked at, one line; may be empty
    std::string remedy;    // empty: that of the table
};
using Diagnoses = std::vector<Diagnosis>;

// Most severe first, then in the order of the table, then as found.
void sort_by_severity(Diagnoses& diagnoses);

// 0: at worst notes; 1: warnings; 3: errors. 2 is wrong usage.
int exit_code(const Diagnoses& diagnoses);

}  // namespace deft::tools::doctor
