// SPDX-License-Identifier: Apache-2.0
// What `deft doctor` prints.
#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/doctor/doctor_command.h"
#include "tools/doctor/judge.h"
#include "tools/text_output.h"

namespace deft::tools::doctor {
namespace {

using Lines = std::vector<std::string>;

std::string remedy_of(const Diagnosis& each) {
    return each.remedy.empty() ? kind_of(each.finding).remedy : each.remedy;
}

std::string copy_text(const NcclCopy& copy) {
    return fmt::format("NCCL {} at {}{}", nccl_version_text(copy.version), printable(copy.path),
                       copy.is_static ? " (static)" : "");
}

void add_nccl(const Facts& facts, Lines& lines) {
    if (facts.nccl && !facts.nccl->copies.empty()) {
        const NcclCopy& used = facts.nccl->copies.front();
        lines.push_back(copy_text(used) + ", " + printable(used.found_by));
    }
    for (const ProcessFacts& process : facts.processes) {
        for (const NcclCopy& copy : process.nccl) {
            lines.push_back(fmt::format("process {}: {}; hooks {}, plugin {}", process.pid,
                                        copy_text(copy),
                                        process.hooks_active ? "at work" : "silent",
                                        process.plugin_active ? "at work" : "silent"));
        }
    }
}

void add_library(const Facts& facts, Lines& lines) {
    if (!facts.preload) {
        return;
    }
    const PreloadEntry* const ours = facts.preload->ours();
    const std::string& path = ours != nullptr ? ours->path : facts.preload->library;
    if (!path.empty()) {
        lines.push_back(fmt::format("library: {} {}", printable(path),
                                    ours != nullptr ? "(preloaded)" : "(deft run preloads it)"));
    }
}

void add_links(const Facts& facts, Lines& lines) {
    std::string text;
    for (const Interface& link :
         facts.links ? facts.links->chosen.links : std::vector<Interface>()) {
        text += fmt::format("{}{} (MTU {})", text.empty() ? "links: " : ", ", printable(link.name),
                            link.mtu);
    }
    if (!text.empty()) {
        lines.push_back(text);
    }
}

void add_settings(const Facts& facts, const Diagnoses& diagnoses, Lines& lines) {
    const bool wrong = std::any_of(diagnoses.begin(), diagnoses.end(), [](const auto& each) {
        return each.finding == Finding::SettingWrong;
    });
    if (facts.settings && !wrong) {
        lines.push_back(fmt::format("settings: mode {}, none is wrong",
                                    facts.settings->config.text(Key::Mode)));
    }
}

void add_host(const Facts& facts, Lines& lines) {
    if (!facts.host) {
        return;
    }
    const HostFacts& host = *facts.host;
    lines.push_back(fmt::format("host: Linux {}, {}, {} open files, {} CPUs",
                                printable(host.kernel), printable(host.congestion_default),
                                host.files == 0 ? "unlimited" : std::to_string(host.files),
                                host.cpus));
}

// What is well, or at least known.
Lines well(const Facts& facts, const Diagnoses& diagnoses) {
    Lines lines;
    add_nccl(facts, lines);
    add_library(facts, lines);
    add_links(facts, lines);
    add_settings(facts, diagnoses, lines);
    add_host(facts, lines);
    if (facts.records && !facts.records->ranks.empty()) {
        lines.push_back(fmt::format("records: {} of {} ranks", facts.records->ranks.size(),
                                    facts.records->ranks.front().ranks));
    }
    return lines;
}

std::string headline(const Facts& facts) {
    if (facts.command && facts.command->assumed && !facts.command->words.empty()) {
        return "well: nothing is wrong with this command under deft run\n";
    }
    return "well: nothing is wrong\n";
}

}  // namespace

std::string human_text(const Facts& facts, const Diagnoses& diagnoses) {
    std::string text = exit_code(diagnoses) == 0 ? headline(facts) : "";
    for (const Diagnosis& each : diagnoses) {
        const FindingKind& kind = kind_of(each.finding);
        text += fmt::format("{}: {}: {}; remedy: {}\n", to_string(kind.severity), kind.name,
                            printable(each.what), printable(remedy_of(each)));
        if (!each.evidence.empty()) {
            text += fmt::format("    seen: {}\n", printable(each.evidence));
        }
    }
    for (const std::string& line : well(facts, diagnoses)) {
        text += "ok: " + line + "\n";
    }
    for (const std::string& line : facts.started) {
        text += "started: " + printable(line) + "\n";
    }
    return text;
}

std::string json_text(const Facts& facts, const Diagnoses& diagnoses) {
    nlohmann::ordered_json document;
    document["format"] = "deft-doctor";
    document["version"] = 1;
    document["exit_code"] = exit_code(diagnoses);
    document["findings"] = nlohmann::ordered_json::array();
    for (const Diagnosis& each : diagnoses) {
        const FindingKind& kind = kind_of(each.finding);
        document["findings"].push_back({{"name", kind.name},
                                        {"severity", to_string(kind.severity)},
                                        {"what", printable(each.what)},
                                        {"evidence", printable(each.evidence)},
                                        {"remedy", printable(remedy_of(each))}});
    }
    document["well"] = well(facts, diagnoses);
    document["nccl"] = nlohmann::ordered_json::array();
    if (facts.nccl) {
        for (const NcclCopy& copy : facts.nccl->copies) {
            document["nccl"].push_back({{"path", printable(copy.path)},
                                        {"version", copy.version},
                                        {"static", copy.is_static},
                                        {"found_by", printable(copy.found_by)}});
        }
    }
    document["started"] = facts.started;
    return document.dump(2) + "\n";
}

std::string findings_table() {
    std::string text = "| finding | verdict | what is wrong | remedy |\n|---|---|---|---|\n";
    for (const FindingKind& kind : finding_kinds()) {
        text += fmt::format("| `{}` | {} | {} | {} |\n", kind.name, to_string(kind.severity),
                            kind.meaning, kind.remedy);
    }
    return text;
}

}  // namespace deft::tools::doctor
