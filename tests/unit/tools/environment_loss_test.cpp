// SPDX-License-Identifier: Apache-2.0
#include "tools/environment_loss.h"

#include <gmock/gmock.h>

#include <sstream>

namespace deft::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string loss(const std::string& line) {
    std::istringstream words(line);
    std::vector<std::string> command;
    for (std::string word; words >> word;) {
        command.push_back(word);
    }
    return environment_loss(command);
}

TEST(EnvironmentLoss, NamesTheProgramAndTheRemedy) {
    EXPECT_EQ(loss("ssh host1 python train.py"),
              "ssh hands no environment to other hosts, so its command runs without deft; put deft "
              "behind it: ssh HOST deft run -- COMMAND");
    EXPECT_EQ(loss("sudo -u bob python train.py"),
              "sudo clears the environment, so its command runs without deft; put deft behind it: "
              "sudo deft run -- COMMAND");
    EXPECT_EQ(loss("env -i PATH=/bin python train.py"),
              "env -i clears the environment, so its command runs without deft; put deft behind "
              "it: env -i NAME=VALUE... deft run -- COMMAND");
}

TEST(EnvironmentLoss, KnowsThemByPath) {
    EXPECT_THAT(loss("/usr/bin/ssh host1 true"), StartsWith("ssh hands"));
    EXPECT_THAT(loss("/usr/bin/sudo true"), StartsWith("sudo clears"));
    EXPECT_THAT(loss("/usr/bin/env -i true"), StartsWith("env -i clears"));
    EXPECT_EQ(loss("/opt/ssh/python train.py"), "");
}

TEST(EnvironmentLoss, SudoNeverKeepsAPreload) {
    for (const char* line :
         {"sudo -E true", "sudo -nE true", "sudo -u bob -E true", "sudo -ubob -E true",
          "sudo --preserve-env true", "sudo --preserve-env=LD_PRELOAD,PATH true"}) {
        EXPECT_THAT(loss(line), AllOf(HasSubstr("lets through"), HasSubstr("never LD_PRELOAD")))
            << line;
    }
    // A user and a command of that letter.
    EXPECT_THAT(loss("sudo -u E true"), StartsWith("sudo clears"));
    EXPECT_THAT(loss("sudo true -E"), StartsWith("sudo clears"));
}

TEST(EnvironmentLoss, EnvClearsOnlyWhereItIsTold) {
    for (const char* line : {"env - true", "env -0i true", "env --ignore-environment true",
                             "env -u X -i true", "env -uX -i A=1 true", "env A=1 sudo true"}) {
        EXPECT_NE(loss(line), "") << line;
    }
    for (const char* line : {"env", "env true", "env A=1 B=2 python -i", "env -u i true",
                             "env -C -i true", "env -- python -i"}) {
        EXPECT_EQ(loss(line), "") << line;
    }
}

TEST(EnvironmentLoss, OtherProgramsThatHandNothingOn) {
    for (const char* line :
         {"docker run image python", "kubectl exec pod -- python", "doas python",
          "systemd-run python", "pdsh -w a,b python", "su - bob -c python", "su -l bob",
          "runuser --login bob", "srun --export=NONE python", "srun --export A,B python",
          "srun -n 2 --nodes 2 --export NONE python", "env -S -i python"}) {
        EXPECT_NE(loss(line), "") << line;
    }
    for (const char* line :
         {"python train.py", "torchrun train.py", "mpirun -np 2 python", "su bob -c python",
          "srun -n 2 python", "srun --export=ALL,A=1 python", "srun python --export=NONE",
          "srun -n 2 python --export=NONE", "srun --export=PATH,LD_PRELOAD,NCCL_NET_PLUGIN python",
          "env -S python -i", "bash -c ssh"}) {
        EXPECT_EQ(loss(line), "") << line;
    }
    EXPECT_EQ(environment_loss({}), "");
}

TEST(EnvironmentLoss, LooksBehindProgramsThatOnlyRunAnother) {
    for (const char* line :
         {"nice sudo true", "nice -n 5 ssh host true", "nice -n5 ssh host true", "nohup ssh host",
          "timeout 5 sudo true", "timeout -k 1 -s KILL 5 sudo true", "stdbuf -oL -e 0 env -i true",
          "taskset -c 0-3 docker run image", "numactl -N 0 --membind=0 sudo true",
          "setsid nohup nice sudo true", "time -f %e sudo true", "ionice -c 3 sudo true",
          "numactl --cpunodebind 0 --membind 0 sudo true", "timeout --signal KILL 5 sudo true",
          "flock -w 3 /tmp/lock ssh host", "setpriv --reuid 7 --clear-groups env -i true",
          "unshare -n ssh host", "xargs -n 1 -I {} ssh {}", "runuser -u bob -- env -i python"}) {
        EXPECT_NE(loss(line), "") << line;
    }
    for (const char* line : {"nice", "nice -n", "timeout", "timeout 5", "timeout 5 python sudo",
                             "nice python train.py", "timeout sudo python",
                             "nice sudo deft run -- python", "taskset -c 0-3 torchrun x.py"}) {
        EXPECT_EQ(loss(line), "") << line;
    }
}

TEST(EnvironmentLoss, CommandsBehindOthers) {
    const auto behind = [](std::vector<std::string> command) {
        std::vector<std::string> assignments;
        return command_behind(command, assignments);
    };
    using Words = std::vector<std::string>;
    const Words job{"sh", "-c", "python train.py"};
    EXPECT_EQ(behind({"su", "bob", "-c", "python train.py"}), job);
    EXPECT_EQ(behind({"su", "-c", "python train.py", "bob"}), job);
    EXPECT_EQ(behind({"su", "--command=python train.py", "bob"}), job);
    EXPECT_EQ(behind({"sg", "gpu", "-c", "python train.py"}), job);
    EXPECT_EQ(behind({"script", "-qc", "python train.py", "log"}), job);
    EXPECT_EQ(behind({"flock", "lock", "-c", "python train.py"}), job);
    EXPECT_EQ(behind({"numactl", "--membind", "0", "python"}), Words{"python"});
    EXPECT_EQ(behind({"numactl", "--membind=0", "python"}), Words{"python"});
    EXPECT_EQ(behind({"taskset", "--cpu-list", "0-3", "python"}), Words{"python"});
    EXPECT_EQ(behind({"python", "-c", "pass"}), Words{});
    EXPECT_EQ(behind({"su", "-s", "/bin/sh", "-lc", "python train.py", "bob"}), job);
    EXPECT_EQ(behind({"flock", "-w", "3", "lock", "--command", "python train.py"}), job);
    EXPECT_EQ(behind({"env", "-S", "A=1 python -i", "x"}), (Words{"python", "-i", "x"}));
    EXPECT_EQ(behind({"env", "-iSpython", "-S"}), (Words{}));
    // An option of that letter, of what is behind.
    const Words own{"python", "train.py", "-c", "cfg.yaml"};
    EXPECT_EQ(behind({"flock", "/tmp/l", "python", "train.py", "-c", "cfg.yaml"}), own);
    EXPECT_EQ(behind({"runuser", "-u", "bob", "--", "python", "train.py", "-c", "cfg.yaml"}), own);
    EXPECT_EQ(behind({"runuser", "-u", "bob", "python", "train.py", "-c", "cfg.yaml"}), own);
    EXPECT_EQ(behind({"su", "bob", "--", "-c", "python train.py"}), Words{});
    EXPECT_EQ(behind({"su", "-s/bin/misc", "bob"}), Words{});
    for (const char* option : {"-c", "-P", "-w", "--cpubind", "-N", "-m"}) {
        EXPECT_EQ(behind({"numactl", option, "0", "python"}), Words{"python"}) << option;
    }
}

TEST(EnvironmentLoss, ACommandThatNamesDeftAgainIsQuiet) {
    for (const char* line :
         {"ssh host1 deft run -- python train.py", "sudo /opt/deft/bin/deft run -- python",
          "sudo LD_PRELOAD=/x.so python", "env -i LD_PRELOAD=/x.so python",
          "docker run -e LD_PRELOAD image python"}) {
        EXPECT_EQ(loss(line), "") << line;
    }
}

}  // namespace
}  // namespace deft::tools
