// SPDX-License-Identifier: Apache-2.0
// The report as people and as programs read it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/tools/observed_document.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

std::string plans_shown(const json& plans) {
    json text = document(0, 1);
    text["plans"] = plans;
    const std::string report = human_report(compare_ranks({parsed(text)}));
    std::string lines;
    for (std::size_t at = report.find("\nplan "); at != report.npos;
         at = report.find("\nplan ", at + 1)) {
        lines += report.substr(at + 1, report.find('\n', at + 1) - at);
    }
    return lines;
}

TEST(HumanReport, TellsOfThePlanOfEachCommunicator) {
    const json running = {{"state", "running"},   {"reason", ""},        {"policy", "deft"},
                          {"predicted_ms", 40.5}, {"before_ms", 61.25},  {"baseline_ms", 60},
                          {"switched", 1},        {"iterations", 100000}};
    EXPECT_EQ(
        plans_shown(json::array({running})),
        "plan       'deft' in force: measured 200.00 ms per iteration, predicted 40.50 ms per "
        "iteration, measured 61.25 ms without it\n");
    json late = running;
    late["updates_per_iteration"] = 1;
    late["progress"] = 0.714;
    EXPECT_THAT(plans_shown(json::array({late})),
                HasSubstr("; 1 update an iteration, worth 0.714 of one without it"));
    json ended = running;
    ended["state"] = "forwarding";
    ended["reason"] = "the sums stopped\nfalling";
    EXPECT_EQ(plans_shown(json::array({running, ended})),
              "plan       'deft' in force: predicted 40.50 ms per iteration, measured 61.25 ms "
              "without it\n"
              "plan       'deft' was in force and is not any more, state forwarding: the sums "
              "stopped\\x0afalling: predicted 40.50 ms per iteration, measured 61.25 ms "
              "without it\n");
    EXPECT_EQ(plans_shown(json::array({{{"state", "watching"}, {"reason", "no optimizer"}}})),
              "plan       none in force, state watching: no optimizer\n");
    EXPECT_EQ(plans_shown(json::array({{{"state", "watching"}}})),
              "plan       none in force, state watching\n");
    json dearer = running;
    dearer["state"] = "watching";
    dearer["switched"] = 0;
    dearer["before_ms"] = 0;
    EXPECT_EQ(plans_shown(json::array({dearer})),
              "plan       'deft' not in force, state watching: predicted 40.50 ms per iteration, "
              "predicted 60.00 ms without it\n");
    EXPECT_EQ(plans_shown(json::array()), "");
}

TEST(HumanReport, TellsHowCallsAreCarriedOut) {
    json text = document(0, 1);
    json plan = {{"state", "watching"}, {"reason", "none is worth it"}};
    plan["tuning"] = {{"state", "settled"},
                      {"reason", ""},
                      {"ratio", 0.875},
                      {"calls", json::array({{{"call", "ncclAllReduce of 4096 float32"},
                                              {"choice", "Tree/Simple on 1 channel"},
                                              {"own_ms", 4.5},
                                              {"chosen_ms", 3.25}}})}};
    text["plans"] = json::array({plan});
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})),
                HasSubstr("\ntuner      settled: an iteration takes 0.88 times as long as before\n"
                          "           ncclAllReduce of 4096 float32: Tree/Simple on 1 channel, "
                          "3.25 ms (NCCL's own choice 4.50 ms)\n"));
    plan["tuning"] = {{"state", "watching"},
                      {"reason", "NCCL_ALGO is set"},
                      {"ratio", 1},
                      {"calls", json::array()}};
    text["plans"] = json::array({plan});
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})),
                HasSubstr("\ntuner      watching: NCCL_ALGO is set\n"));
    plan.erase("tuning");
    text["plans"] = json::array({plan});
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})), Not(HasSubstr("tuner")));
}

TEST(HumanReport, SaysWhetherTheLargeSumsAreKnownToBeGradients) {
    const auto shown = [](const char* mode, const char* gradients) {
        json texts[] = {document(0, 2), document(1, 2)};
        for (json& text : texts) {
            text["mode"] = mode;
            text["gradients"] = gradients;
        }
        const std::string report =
            human_report(compare_ranks({parsed(texts[0]), parsed(texts[1])}));
        const std::size_t at = report.find("\ngradients ");
        const std::size_t end = report.find('\n', at + 1);
        EXPECT_EQ(report.find("\ngradients ", end), report.npos) << "once for all ranks";
        return at == report.npos ? std::string() : report.substr(at + 1, end - at);
    };
    EXPECT_EQ(shown("deft", "trust"),
              "gradients  trusted: the operator says that the large sums are gradients "
              "(DEFT_GRADIENTS=trust)\n");
    EXPECT_EQ(shown("covap", "proven"),
              "gradients  mode covap delays or merges what the companions of all ranks have proven "
              "(docs/companion.md)\n");
    EXPECT_EQ(shown("exact", "proven"), "");
    EXPECT_EQ(shown("deft", ""), "") << "of an older writer";
}

TEST(HumanReport, RanksThatTellTheSameOfAPlanTellItOnce) {
    json texts[] = {document(0, 3), document(1, 3), document(2, 3)};
    for (json& text : texts) {
        text["plans"] =
            json::array({{{"state", "running"}, {"policy", "deft"}, {"predicted_ms", 1}}});
    }
    texts[2]["plans"][0]["state"] = "staging";
    const RunReport run = compare_ranks({parsed(texts[0]), parsed(texts[1]), parsed(texts[2])});
    const std::string report = human_report(run);
    EXPECT_NE(report.find("plan       ranks 0-1: 'deft' in force"), report.npos);
    EXPECT_NE(report.find("plan       rank 2: 'deft' not in force, state staging"), report.npos);
    EXPECT_EQ(report.find("in force: "), report.rfind("in force: ")) << report;
    EXPECT_NE(report.find("as a rule its rank 0, plans: its line counts"), report.npos);
    texts[2] = texts[1];
    texts[2]["rank"] = 2;
    const std::string agreed =
        human_report(compare_ranks({parsed(texts[0]), parsed(texts[1]), parsed(texts[2])}));
    EXPECT_NE(agreed.find("plan       'deft' in force"), agreed.npos) << agreed;
    EXPECT_EQ(agreed.find("its line counts"), agreed.npos);
    EXPECT_EQ(json::parse(json_report(run))["ranks"][1]["plans"][0]["policy"], "deft");
}

// The loss of a training that diverges is larger than any time.
TEST(JsonReport, TellsWhatAFallCost) {
    const json fall = {{"iteration", 120},
                       {"action", "fall back"},
                       {"reason", "the loss rose"},
                       {"acted", true},
                       {"from", 90},
                       {"to", 130},
                       {"late_by", 1},
                       {"dropped", 2},
                       {"loss_expected", 0.5},
                       {"loss_seen", 1e200}};
    const json resume = {
        {"iteration", 330}, {"action", "resume"}, {"reason", "synchronous"}, {"acted", true}};
    json text = document(0, 1);
    text["plans"] = {{{"communicator", "c0ffee"},
                      {"state", "running"},
                      {"guard_decisions", 2},
                      {"guard_history", {fall, resume}}}};
    const json told = json::parse(json_report(compare_ranks({parsed(text)})));
    EXPECT_EQ(told["ranks"][0]["plans"][0]["guard_history"], json({fall, resume}));
}

TEST(HumanReport, ShowsFiguresAndSpread) {
    const std::string shown =
        human_report(compare_ranks({parsed(document(0, 2)), parsed(document(1, 2, 1.5))}));
    EXPECT_THAT(shown, HasSubstr("observed 2 of 2 ranks on 2 hosts; NCCL 2.28.9"));
    EXPECT_THAT(shown, HasSubstr("100 NCCL calls seen on each rank, 90 of them ncclAllReduce"));
    EXPECT_THAT(shown, HasSubstr("net ABI v11), called 10000 times"));
    EXPECT_THAT(shown, HasSubstr("250.00 [200.00..300.00] ms"));
    EXPECT_THAT(shown, HasSubstr("37.50 [30.00..45.00]")) << "ready time of bucket 0";
    EXPECT_THAT(shown, HasSubstr("1.00\n")) << "8224000 bytes in 65.792 ms are 1 Gbit/s";
    EXPECT_THAT(shown, HasSubstr("22.9 MiB"));
    EXPECT_THAT(shown, HasSubstr("eth0"));
}

TEST(HumanReport, SaysWhatIsAGuess) {
    json text = document(0, 1);
    text["iterations"]["compute_ms"] = quantiles(40);
    text["iterations"]["coverage_rate"] = quantiles(3);
    text["iterations"]["latest_start_ms"] = quantiles(120);
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})),
                HasSubstr("may be up to 120.00 ms, coverage down to 1.00\n"));
    text["iterations"]["latest_start_ms"] = quantiles(42);
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})), Not(HasSubstr("may be")));
    text["iterations"].erase("latest_start_ms");  // a file of an earlier release
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})), Not(HasSubstr("may be")));
}

TEST(HumanReport, AFileCannotDriveTheTerminal) {
    json text = document(0, 1);
    text["links"][0]["name"] = "eth\x1b[2J";
    text["library"]["version"] = "0\n1";
    const std::string shown = human_report(compare_ranks({parsed(text)}));
    EXPECT_EQ(shown.find('\x1b'), shown.npos);
    EXPECT_THAT(shown, HasSubstr("eth\\x1b[2J"));
}

TEST(JsonReport, IsJsonWithTheSameFigures) {
    const json document_out = json::parse(
        json_report(compare_ranks({parsed(document(0, 2)), parsed(document(1, 2, 1.5))})));
    EXPECT_EQ(document_out["format"], "deft-report");
    EXPECT_EQ(document_out["time_ms"]["median"], 250.0);
    EXPECT_EQ(document_out["time_ms"]["highest"], 300.0);
    EXPECT_EQ(document_out["ranks"].size(), 2u);
    EXPECT_EQ(document_out["ranks"][0]["buckets"][1]["transfer_ms"], nullptr);
    EXPECT_TRUE(document_out["problems"].empty());
}

}  // namespace
}  // namespace deft::tools
