// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tools/doctor/provoked.h"

namespace deft::tools::doctor {

namespace {

void only_records(Facts& facts, std::vector<ObserveFile> ranks) {
    facts = Facts();
    facts.records.emplace().ranks = std::move(ranks);
}

}  // namespace

std::vector<Case> peer_cases() {
    const auto with = [](std::function<void(PeerFacts&)> change) {
        return [change](Facts& f) {
            f.peer = peer();
            change(*f.peer);
        };
    };
    return {
        {Finding::PeerUnreachable, "10.0.0.2: no answer",
         with([](auto& p) { p.problem = "no answer"; })},
        {Finding::PeerLinkBlocked, "eth0 to eth0 (10.0.0.2) of host2: no answer",
         with([](auto& p) { p.ways[0].connect_error = "no answer"; })},
        {Finding::PeerLinkBlocked, "no byte came back",
         with([](auto& p) { p.ways[0].small_passed = false; })},
        {Finding::PeerFullSize, "64 KiB did not",
         with([](auto& p) { p.ways[0].full_passed = false; })},
        {Finding::PeerVersion, "host2 has deft 0.9", with([](auto& p) { p.version = "0.9"; })},
        {Finding::PeerSettings, "DEFT_MODE is 'off' on host2",
         with([](auto& p) { p.settings["DEFT_MODE"] = "off"; })},
        {Finding::PeerMtu, "the MTU is 9000 here, and 1500 there", with([](auto& p) {
             p.ways[0].local_mtu = 9000;
             p.ways[0].remote_mtu = 1500;
         })},
        {Finding::PeerLinks, "2 links, this host 1", with([](auto& p) { p.links = 2; })},
        {Finding::PeerClock, "60.0 s ahead", with([](auto& p) { p.clock_apart_s = 60; })},
    };
}

std::vector<Case> record_cases() {
    const auto with = [](std::function<void(ObserveFile&)> change) {
        return [change](Facts& f) {
            ObserveFile second = record(1);
            change(second);
            only_records(f, {record(0), second});
        };
    };
    return {
        {Finding::RecordUnreadable, "r9.json",
         [](Facts& f) {
             only_records(f, {record(0), record(1)});
             f.records->unreadable = {"r9.json: not JSON"};
         }},
        {Finding::RecordsHooksMissed, "rank 1 (host host1)",
         with([](auto& r) { r.calls.clear(); })},
        {Finding::RecordsPluginMissed, "rank 1 (host host1)",
         with([](auto& r) { r.plugin_loaded = false; })},
        {Finding::RecordsVersions, "0.9: rank 1; 1.0: rank 0",
         with([](auto& r) { r.library_version = "0.9"; })},
        {Finding::RecordsNcclVersions, "2.18.5: rank 1",
         with([](auto& r) { r.nccl_version = 21805; })},
        {Finding::RecordsModes, "observe: rank 1", with([](auto& r) { r.mode = "observe"; })},
        {Finding::RecordsModes, "trust: rank 1", with([](auto& r) { r.gradients = "trust"; })},
        {Finding::RecordsNoAgreement, "rank 1 on host1: no agreement: rank 0 has no deft",
         with([](auto& r) {
             r.plans.push_back({"no agreement", "rank 0 has no deft", "", {}, {}, {}, 0});
         })},
        {Finding::RecordsResting, "too many changes", with([](auto& r) {
             r.plans.push_back({"resting", "too many changes", "", {}, {}, {}, 0});
         })},
        {Finding::RecordsContradict, "rank 0 occurs twice",
         [](Facts& f) {
             only_records(f, {record(0), record(1)});
             f.records->contradictions = {"rank 0 occurs twice"};
         }},
        {Finding::RecordsMissing, "1 of 2 ranks", [](Facts& f) { only_records(f, {record(0)}); }},
        {Finding::RecordsLinks, "eth0: rank 1", with([](auto& r) { r.links.pop_back(); })},
        {Finding::RecordsLinkIdle, "eth1 carried nothing",
         with([](auto& r) { r.links[1].bytes_sent = r.links[1].bytes_received = 0; })},
        {Finding::RecordsLinkFlaps, "sent 99 bytes again",
         with([](auto& r) { r.links[1].resent_bytes = 99; })},
        {Finding::RecordsNoTimes, "no events", with([](auto& r) { r.events_note = "no events"; })},
    };
}

}  // namespace deft::tools::doctor
