// SPDX-License-Identifier: Apache-2.0
// What operators write into the system's file: wrong lines, forcing, ceilings, sections, canaries,
// and the switches that turn deft off.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>

#include "tests/unit/base/config_fixture.h"

namespace deft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Others of its lines hold, and nothing is the job's problem.
TEST_F(ConfigTest, AWrongLineOfTheSystemFileIsIgnored) {
    for (const char* wrong :
         {"DEFT_MOED=off", "DEFT_LINK_TIMEOUT=soon", "DEFT_MODE", "force.DEFT_LOG=", "=x",
          "force.DEFT_MOED=off", "celing=exact", "ceiling.DEFT_LOG=info", "DEFT_CONF=/x",
          "ceiling.DEFT_STREAMS=many", "force.DEFT_DISABLE=", "kill=shared/off", "force.=off"}) {
        const Config config =
            load({"DEFT_MODE=deft"},
                 file("system", "DEFT_LOG=info\n" + std::string(wrong) + "\nDEFT_REQUIRE=1\n"));
        EXPECT_THAT(config.problems(), IsEmpty()) << wrong;
        EXPECT_THAT(config.warnings(), IsEmpty()) << wrong;
        EXPECT_EQ(config.central_problem(), "") << wrong;
        EXPECT_THAT(config.ignored_lines(), ElementsAre(HasSubstr("/system:2"))) << wrong;
        EXPECT_TRUE(config.is(Key::Mode, "deft")) << wrong;
        EXPECT_TRUE(config.is(Key::Log, "info")) << wrong;
        EXPECT_TRUE(config.flag(Key::Require)) << wrong;
    }
    std::string many;
    for (int i = 0; i < 12; ++i) {
        many += "nonsense\n";
    }
    const Config config = load({}, file("system", many + "DEFT_LOG=info\n"));
    EXPECT_THAT(config.ignored_lines(), SizeIs(6));
    EXPECT_THAT(config.ignored_lines().back(), HasSubstr("7 more lines"));
    EXPECT_TRUE(config.is(Key::Log, "info"));
}

// It may have been a kill switch.
TEST_F(ConfigTest, AWrongModeInTheSystemFileMeansOffAndIsNoProblem) {
    for (const char* text : {"DEFT_MODE=of\n", "force.DEFT_MODE=of\n", "ceiling=exakt\n",
                             "[*]\nforce.DEFT_MODE=\n", "DEFT_REQUIRE=1\nDEFT_MODE=of\n"}) {
        const Config config = load({"DEFT_MODE=deft", "DEFT_LOG=info"},
                                   file("system", std::string("DEFT_LINK_TIMEOUT=1s\n") + text));
        EXPECT_THAT(config.problems(), IsEmpty()) << text;
        EXPECT_THAT(config.warnings(), IsEmpty()) << text;
        EXPECT_THAT(config.central_problem(), HasSubstr("/system:")) << text;
        EXPECT_TRUE(config.is(Key::Mode, "off")) << text;
        EXPECT_EQ(config.integer(Key::Mode), 0) << text;
        EXPECT_TRUE(config.is(Key::Log, "info")) << text;
        // No other line holds then.
        EXPECT_EQ(config.text(Key::LinkTimeout), variable(Key::LinkTimeout).default_text) << text;
        EXPECT_FALSE(config.flag(Key::Require)) << text;
    }
    const Config config = load({"DEFT_LOG=loud"}, file("system", "DEFT_MODE=of\n"));
    EXPECT_THAT(config.problems(), ElementsAre(HasSubstr("DEFT_LOG='loud'")));
    EXPECT_THAT(load({}, folder_).central_problem(), HasSubstr("not a regular file"));
    EXPECT_TRUE(load({"DEFT_MODE=exact"}, folder_).is(Key::Mode, "off"));
    EXPECT_EQ(load({"DEFT_DISABLE=1"}, folder_).central_problem(), "");
    EXPECT_EQ(load({}, file("system", "DEFT_MODE=observe\n")).central_problem(), "");
}

std::vector<TextProblem> no_rockets(const Config& config) {
    return {{Key::Predict, ""},
            {Key::Optimizer, config.text(Key::Optimizer) == "rocket" ? "no rockets" : ""}};
}

TEST_F(ConfigTest, ATextOfTheSystemFileIsChecked) {
    const std::string system = file("system", "DEFT_REQUIRE=1\nDEFT_OPTIMIZER=rocket\n");
    const auto with = [&](const std::vector<std::string>& environment) {
        return load(environment, system, no_rockets);
    };
    const Config wrong = with({"DEFT_LOG=info"});
    EXPECT_EQ(wrong.central_problem(), "");
    EXPECT_THAT(wrong.ignored_lines(), ElementsAre("no rockets"));
    EXPECT_THAT(wrong.problems(), IsEmpty());
    EXPECT_TRUE(wrong.is(Key::Mode, "exact"));
    EXPECT_TRUE(wrong.flag(Key::Require)) << "the other lines hold";
    EXPECT_EQ(wrong.text(Key::Optimizer), "");
    EXPECT_TRUE(wrong.is(Key::Log, "info"));
    // The user's own value counts, right or wrong; that is for others to say.
    for (const char* own : {"DEFT_OPTIMIZER=sgd", "DEFT_OPTIMIZER="}) {
        EXPECT_THAT(with({own}).ignored_lines(), IsEmpty()) << own;
    }
    EXPECT_THAT(with({"DEFT_CONF=" + file("user", "DEFT_OPTIMIZER=rocket\n")}).ignored_lines(),
                IsEmpty());
    // Where deft is off nothing is asked of it.
    EXPECT_THAT(with({"DEFT_MODE=off"}).ignored_lines(), IsEmpty());
    EXPECT_THAT(with({"DEFT_DISABLE=1"}).ignored_lines(), IsEmpty());
    // What is forced gives the job its own value back.
    const Config forced =
        load({"DEFT_OPTIMIZER=sgd"},
             file("system", "DEFT_OPTIMIZER=adam\nforce.DEFT_OPTIMIZER=rocket\n"), no_rockets);
    EXPECT_EQ(forced.text(Key::Optimizer), "sgd");
    EXPECT_THAT(forced.ignored_lines(), ElementsAre("no rockets"));
}

TEST_F(ConfigTest, CommentsMayStandBehindValues) {
    for (const auto& [line, value] :
         {std::pair{"DEFT_OUT=/tmp/%h.json # the fleet's", "/tmp/%h.json"},
          {"  DEFT_OUT = a\t# x", "a"},
          {"DEFT_OUT=a#b", "a#b"},
          {"DEFT_OUT=#x", "#x"},
          {"DEFT_OUT='a # b'", "a # b"},
          {"DEFT_OUT='a # b'  # c", "a # b"},
          {"DEFT_OUT=\"a b\" # \"a\" is too short", "a b"},
          {"DEFT_OUT = \"#a\"", "#a"},
          {"DEFT_OUT=\"a\" b # c", "\"a\" b"},
          {"DEFT_OUT= # not now", "deft-%j-%h.json"},
          {"[*] # all\nDEFT_OUT=x", "x"}}) {
        const Config config = load({}, file("system", line));
        EXPECT_EQ(config.central_problem(), "") << line;
        EXPECT_THAT(config.ignored_lines(), IsEmpty()) << line;
        EXPECT_EQ(config.text(Key::Out), value) << line;
    }
    EXPECT_EQ(load({"DEFT_OUT=a # b"}).text(Key::Out), "a # b") << "a shell has read it already";
}

TEST_F(ConfigTest, WhatIsForcedBeatsTheEnvironment) {
    const std::string system = file("system",
                                    "force.DEFT_MODE=off # until Monday\n"
                                    "force.DEFT_STREAMS=4\nDEFT_LOG=info\n");
    const Config config = load({"DEFT_MODE=deft", "DEFT_STREAMS=2", "DEFT_LOG=debug"}, system);
    EXPECT_TRUE(config.is(Key::Mode, "off"));
    EXPECT_EQ(config.setting(Key::Mode).source, ValueSource::SystemFile);
    EXPECT_EQ(config.setting(Key::Mode).hold, ValueHold::Forced);
    EXPECT_EQ(config.setting(Key::Mode).origin, "forced by " + system + ":1");
    EXPECT_EQ(config.integer(Key::Streams), 4);
    EXPECT_TRUE(config.is(Key::Log, "debug")) << "what is only set gives way";
    EXPECT_THAT(config.overruled(),
                testing::UnorderedElementsAre(HasSubstr("DEFT_MODE=deft (environment)"),
                                              HasSubstr("DEFT_STREAMS=2 (environment)")));
    EXPECT_THAT(load({"DEFT_MODE=off"}, system).overruled(), IsEmpty()) << "nothing is lost";
    EXPECT_THAT(load({"DEFT_MODE=warp"}, system).problems(), IsEmpty()) << "it counts for nothing";
    // The last line that is right counts; what is wrong behind it does not undo it.
    const Config last = load({"DEFT_LOG=none"}, file("system",
                                                     "force.DEFT_LOG=debug\nforce.DEFT_LOG=info\n"
                                                     "force.DEFT_LOG=loud\n"));
    EXPECT_TRUE(last.is(Key::Log, "info"));
    EXPECT_THAT(last.ignored_lines(), SizeIs(1));
    // Nobody is forced to have deft.
    EXPECT_TRUE(
        load({"DEFT_DISABLE=1"}, file("system", "force.DEFT_MODE=exact\n")).is(Key::Mode, "off"));
    EXPECT_TRUE(
        load({"DEFT_DISABLE="}, file("system", "force.DEFT_DISABLE=1\n")).is(Key::Mode, "off"));
}

TEST_F(ConfigTest, AUsersFileForcesOnlyWhatTheSystemLeavesFree) {
    const std::string user = "DEFT_CONF=" + file("user",
                                                 "force.DEFT_MODE=deft\nforce.DEFT_LOG=info\n"
                                                 "ceiling.DEFT_MAX_DELAY=1\n");
    const Config config =
        load({user, "DEFT_LOG=debug", "DEFT_MAX_DELAY=3"}, file("system", "force.DEFT_MODE=off\n"));
    EXPECT_TRUE(config.is(Key::Mode, "off"));
    EXPECT_TRUE(config.is(Key::Log, "info"));
    EXPECT_EQ(config.integer(Key::MaxDelay), 1);
    EXPECT_TRUE(load({user, "DEFT_MODE=off"}, file("system", "ceiling=observe\n"))
                    .is(Key::Mode, "observe"));
    EXPECT_THAT(load({"DEFT_CONF=" + file("user", "force.DEFT_MODE=of\n")}).problems(), SizeIs(1));
}

TEST_F(ConfigTest, ACeilingLowersTheModeAndNumbers) {
    const auto mode = [&](const std::string& ceiling, const std::string& wanted) {
        return load({"DEFT_MODE=" + wanted}, file("system", "ceiling=" + ceiling + "\n"))
            .text(Key::Mode);
    };
    EXPECT_EQ(mode("exact", "deft"), "exact");
    EXPECT_EQ(mode("exact", "covap"), "exact");
    EXPECT_EQ(mode("exact", "observe"), "observe");
    EXPECT_EQ(mode("observe", "exact"), "observe");
    EXPECT_EQ(mode("off", "deft"), "off");
    EXPECT_EQ(mode("deft", "deft"), "deft");
    EXPECT_EQ(mode("deft", "covap"), "exact") << "deft is no weaker covap";
    EXPECT_EQ(mode("covap", "deft"), "deft");
    const Config config = load({"DEFT_MODE=deft", "DEFT_STREAMS=8", "DEFT_LINK_TIMEOUT=5s"},
                               file("system",
                                    "force.DEFT_MODE=covap\nceiling=exact\nceiling.DEFT_STREAMS=2\n"
                                    "ceiling.DEFT_LINK_TIMEOUT=1min\nceiling.DEFT_MAX_DELAY=0\n"));
    EXPECT_TRUE(config.is(Key::Mode, "exact")) << "what is forced has a ceiling too";
    EXPECT_EQ(config.integer(Key::Mode), 2);
    EXPECT_EQ(config.setting(Key::Mode).hold, ValueHold::Capped);
    EXPECT_EQ(config.integer(Key::Streams), 2);
    EXPECT_EQ(config.duration(Key::LinkTimeout), std::chrono::seconds(5));
    EXPECT_EQ(config.integer(Key::MaxDelay), 0);
    EXPECT_EQ(config.setting(Key::MaxDelay).source, ValueSource::Default)
        << "a ceiling sets nothing";
    EXPECT_THAT(config.overruled(), testing::Contains(HasSubstr("DEFT_STREAMS is 2, capped by ")));
    // The last one of a file counts.
    EXPECT_TRUE(load({"DEFT_MODE=deft"}, file("system", "ceiling=off\nceiling=deft\n"))
                    .is(Key::Mode, "deft"));
}

TEST_F(ConfigTest, KillNamesAFileThatNoJobCanTakeBack) {
    const Config config =
        load({"DEFT_KILL_FILE=/tmp/other"}, file("system", "kill=/shared/stop # all clusters\n"));
    EXPECT_EQ(config.text(Key::KillFile), "/shared/stop");
    EXPECT_EQ(config.setting(Key::KillFile).hold, ValueHold::Forced);
}

// As the file has it: who reads the line looks for the word that stands there.
TEST_F(ConfigTest, AWrongLineIsBlamedByTheNameThatItHas) {
    const auto blamed = [&](const std::string& line) {
        const Config config = load({}, file("system", line + "\n"));
        return config.central_problem() +
               (config.ignored_lines().empty() ? "" : config.ignored_lines().front());
    };
    EXPECT_THAT(blamed("force.DEFT_MODE=3"), testing::StartsWith("force.DEFT_MODE='3' ("));
    EXPECT_THAT(blamed("ceiling=3"), testing::StartsWith("ceiling='3' ("));
    EXPECT_THAT(blamed("kill=shared/off"),
                AllOf(testing::StartsWith("kill='shared/off' ("), HasSubstr("full path")));
    EXPECT_THAT(blamed("force.=3"), HasSubstr("'force.'"));
    EXPECT_THAT(load({"DEFT_KILL_FILE=off"}).problems(), SizeIs(1));
}

TEST_F(ConfigTest, SectionsHoldForJobsThatTheyName) {
    char host[256] = "";
    ASSERT_EQ(::gethostname(host, sizeof(host)), 0);
    const std::string user = std::to_string(::geteuid());
    const auto log = [&](const std::string& section) {
        const Config config = load({"SLURM_JOB_PARTITION=gpu-large"},
                                   file("system", section + "\nDEFT_LOG=debug\n[*]\nDEFT_OUT=x\n"));
        EXPECT_THAT(config.ignored_lines(), IsEmpty()) << section;
        EXPECT_EQ(config.text(Key::Out), "x") << section;
        return config.is(Key::Log, "debug");
    };
    EXPECT_TRUE(log("[host=" + std::string(host) + "]"));
    EXPECT_TRUE(log("[host=nowhere*,?*]"));
    EXPECT_FALSE(log("[host=nowhere*]"));
    EXPECT_TRUE(log("[partition=gpu-*]  # the large ones"));
    EXPECT_TRUE(log("[partition=gpu-[l,s]*]"));
    EXPECT_FALSE(log("[partition=gpu]"));
    EXPECT_TRUE(log("[user=" + user + "]"));
    EXPECT_FALSE(log("[user=" + user + "1]"));
    EXPECT_TRUE(log("[executable=*base_test*]"));
    EXPECT_FALSE(log("[executable=train.py]"));
    EXPECT_TRUE(log("[partition=gpu-* user=" + user + "]"));
    EXPECT_FALSE(log("[partition=gpu-* host=nowhere]")) << "all conditions have to hold";
    const std::string path = file("system", "[user=" + user + "]\nforce.DEFT_MODE=observe\n");
    EXPECT_EQ(load({}, path).setting(Key::Mode).origin,
              "forced by " + path + ":2, section [user=" + user + "]");
}

// What was meant for few must not hold for all.
TEST_F(ConfigTest, LinesOfASectionThatIsWrongHoldForNobody) {
    for (const char* section : {"[hosts=*]", "[host]", "[host=]", "[]", "[host=*", "[host=* x]"}) {
        const Config config = load(
            {},
            file("system", std::string(section) + "\nDEFT_LOG=debug\nnonsense\n[*]\nDEFT_OUT=x\n"));
        EXPECT_THAT(config.ignored_lines(), ElementsAre(HasSubstr("/system:1"))) << section;
        EXPECT_TRUE(config.is(Key::Log, "warn")) << section;
        EXPECT_EQ(config.text(Key::Out), "x") << section;
    }
}

TEST_F(ConfigTest, ASectionNamesTheProgramOfACommand) {
    const std::string system = file("system", "[executable=train.py]\nDEFT_LOG=debug\n");
    const auto log = [&](const std::vector<std::string>& command) {
        return Config::load({}, system, nullptr, command).is(Key::Log, "debug");
    };
    EXPECT_TRUE(log({"./train.py", "--lr", "1"}));
    EXPECT_TRUE(log({"python3", "-u", "-X", "dev", "/home/a/train.py"}));
    EXPECT_FALSE(log({"python3", "-c", "1", "train.py"}));
    EXPECT_FALSE(log({"cat", "train.py"}));
}

// Whoever may write to it would decide for all jobs of the host.
TEST_F(ConfigTest, OnlyASafeFileMayForce) {
    const std::string system = file("system", "force.DEFT_MODE=off\nceiling=off\nDEFT_LOG=info\n");
    ASSERT_EQ(::chmod(system.c_str(), 0646), 0);
    const Config config = load({"DEFT_MODE=exact"}, system);
    EXPECT_TRUE(config.is(Key::Mode, "exact"));
    EXPECT_TRUE(config.is(Key::Log, "info"));
    ASSERT_THAT(config.ignored_lines(), SizeIs(2));
    EXPECT_THAT(config.ignored_lines()[0], AllOf(HasSubstr(":1"), HasSubstr("chmod o-w")));
    ASSERT_EQ(::chmod(system.c_str(), 0644), 0);
    EXPECT_TRUE(load({"DEFT_MODE=exact"}, system).is(Key::Mode, "off"));
    if (::geteuid() == 0) {
        ASSERT_EQ(::chown(system.c_str(), 12345, 12345), 0);
        EXPECT_THAT(load({}, system).ignored_lines(),
                    testing::Contains(HasSubstr("belongs to user 12345")));
    }
    // A file that a user names binds nobody else.
    ASSERT_EQ(::chmod(system.c_str(), 0666), 0);
    EXPECT_TRUE(load({"DEFT_CONF=" + system, "DEFT_MODE=exact"}).is(Key::Mode, "off"));
}

TEST_F(ConfigTest, TheJobsIdDecidesWhetherItIsACanary) {
    const auto taken = [&](const std::string& share, const std::string& id) {
        const Config config = load({"DEFT_CANARY=" + share, "SLURM_JOB_ID=" + id});
        EXPECT_THAT(config.problems(), IsEmpty());
        EXPECT_THAT(config.overruled(), IsEmpty());
        return config.is(Key::Mode, "exact");
    };
    int five = 0;
    for (int job = 100'000; job < 104'000; ++job) {
        const std::string id = std::to_string(job);
        const bool is = taken("5%", id);
        five += is ? 1 : 0;
        EXPECT_TRUE(!is || taken("10", id)) << "a larger share takes it too";
        EXPECT_TRUE(taken("100%", id));
        EXPECT_FALSE(taken("0", id));
    }
    EXPECT_NEAR(five, 200, 60);
    // For ever: ranks of different releases are in one job.
    EXPECT_FALSE(taken("5%", "12345"));
    EXPECT_TRUE(taken("5%", "100009"));
}

TEST_F(ConfigTest, ACanaryTakesTheIdOfWhatStartedTheJob) {
    const auto origin = [&](std::vector<std::string> environment) {
        environment.push_back("DEFT_CANARY=0");
        return load(environment).setting(Key::Mode).origin;
    };
    EXPECT_EQ(origin({"SLURM_JOB_ID=7"}),
              "DEFT_CANARY=0 (environment): job 7 (SLURM_JOB_ID) is not taken");
    EXPECT_THAT(origin({"SLURM_JOB_ID=8", "SLURM_HET_JOB_ID=7", "TORCHELASTIC_RUN_ID=x"}),
                HasSubstr("job 7 (SLURM_HET_JOB_ID)"));
    EXPECT_THAT(origin({"TORCHELASTIC_RUN_ID=x", "DEFT_JOB_ID=mine", "SLURM_JOB_ID=7"}),
                HasSubstr("job mine (DEFT_JOB_ID)"));
    EXPECT_THAT(origin({"PBS_JOBID=7.host"}), HasSubstr("job 7.host "));
    EXPECT_THAT(origin({"AWS_BATCH_JOB_ID=7-8#1"}), HasSubstr("job 7-8 "));
    EXPECT_THAT(origin({"TORCHELASTIC_RUN_ID=run"}), HasSubstr("job run "));
    for (const char* none : {"TORCHELASTIC_RUN_ID=none", "SLURM_JOB_ID=", "JOB_ID=7"}) {
        const Config config = load({"DEFT_CANARY=5%", none});
        EXPECT_TRUE(config.is(Key::Mode, "off")) << none;
        EXPECT_TRUE(config.canary_undecided()) << none;
        EXPECT_THAT(config.overruled(), ElementsAre(HasSubstr("the job has no id"))) << none;
    }
    EXPECT_TRUE(load({"DEFT_CANARY=100%"}).is(Key::Mode, "exact"));
    EXPECT_THAT(load({"DEFT_CANARY=5%", "DEFT_MODE=off"}).overruled(), IsEmpty());
    // A job may take itself in, unless the operator forces the share.
    const std::string soft = file("system", "DEFT_CANARY=0\n");
    const std::string hard = file("forced", "force.DEFT_CANARY=0%\n");
    EXPECT_TRUE(load({"DEFT_CANARY=100%", "SLURM_JOB_ID=7"}, soft).is(Key::Mode, "exact"));
    EXPECT_TRUE(load({"DEFT_CANARY=100%", "SLURM_JOB_ID=7"}, hard).is(Key::Mode, "off"));
    EXPECT_THAT(load({"DEFT_CANARY=101%"}).problems(), SizeIs(1));
    EXPECT_THAT(load({"DEFT_CANARY=some"}).problems(), SizeIs(1));
}

TEST_F(ConfigTest, AUserFileOrTheEnvironmentMayBeWrongForThemselves) {
    EXPECT_THAT(load({"DEFT_CONF=" + file("user", "DEFT_MODE=of\n")}).problems(), SizeIs(1));
    EXPECT_THAT(load({"DEFT_CONF=" + file("user", "DEFT_MOED=off\n")}).warnings(), SizeIs(1));
}

TEST_F(ConfigTest, OffHasManySpellings) {
    for (const char* word : {"off", "OFF", "Off", "0", "no", "NO", "disabled", "Disabled"}) {
        const Config config = load({std::string("DEFT_MODE=") + word});
        EXPECT_THAT(config.problems(), IsEmpty()) << word;
        EXPECT_TRUE(config.is(Key::Mode, "off")) << word;
    }
    EXPECT_THAT(load({"DEFT_MODE=on"}).problems(), SizeIs(1));
    EXPECT_THAT(load({"DEFT_LOG=0"}).problems(), SizeIs(1));
}

TEST_F(ConfigTest, DisableWinsWhateverElseIsSet) {
    for (const char* word : {"1", "0", "no", "anything"}) {
        const Config config =
            load({std::string("DEFT_DISABLE=") + word, "DEFT_MODE=warp", "DEFT_LOGG=x"},
                 file("system", "DEFT_MODE=of\n"));
        EXPECT_TRUE(config.is(Key::Mode, "off")) << word;
        EXPECT_THAT(config.problems(), IsEmpty()) << word;
        EXPECT_THAT(config.warnings(), IsEmpty()) << word;
        EXPECT_EQ(config.central_problem(), "") << word;
    }
    EXPECT_TRUE(load({"DEFT_DISABLE=", "DEFT_MODE=deft"}).is(Key::Mode, "deft"));
    EXPECT_TRUE(load({"DEFT_DISABLE="}, file("system", "DEFT_DISABLE=1\n")).is(Key::Mode, "exact"));
    EXPECT_TRUE(load({"DEFT_MODE=deft"}, file("system", "DEFT_DISABLE=1\n")).is(Key::Mode, "off"));
}

TEST_F(ConfigTest, VariablesOfAPackageDrawNoWarning) {
    EXPECT_THAT(load({"DEFT_HOME=/opt", "DEFT_ROOT=/opt", "DEFT_DIR=/opt"}).warnings(), IsEmpty());
    EXPECT_THAT(load({"DEFT_HOMES=/opt"}).warnings(), SizeIs(1));
}

}  // namespace
}  // namespace deft
