// SPDX-License-Identifier: Apache-2.0
// Where doctor believes that the ranks of a job meet: by whole job scripts, most of them healthy.
#include <gmock/gmock.h>
#include <stdlib.h>
#include <filesystem>
#include <fstream>

#include "tools/doctor/command_facts.h"
#include "tools/doctor/host_facts.h"
#include "tools/doctor/judge.h"

namespace deft::tools::doctor {
namespace {

using Words = std::vector<std::string>;

class MeetingTest : public testing::Test {
protected:
    MeetingTest() {
        char name[] = "/tmp/deft-meeting-XXXXXX";
        folder_ = ::mkdtemp(name);
        environment_.set("PATH", "/usr/bin:/bin");
        environment_.set("SLURM_JOB_NUM_NODES", "2");
    }
    ~MeetingTest() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    std::string write(const std::string& name, const std::string& text) {
        const std::string path = folder_ + "/" + name;
        std::ofstream(path) << text;
        return path;
    }
    // What is said of a command on a host whose name Debian has put at 127.0.1.1.
    bool lonely(const Words& words) {
        Job job = read_command(words, environment_);
        Facts facts;
        facts.settings = read_settings(job);
        facts.command = std::move(job.command);
        facts.host.emplace().own_name_at = "127.0.1.1";
        Diagnoses found;
        judge_meeting(facts, found);
        return !found.empty();
    }
    bool lonely_script(const std::string& text) {
        return lonely({"sh", write("job.sh", "#!/bin/sh\n" + text + "\n")});
    }
    bool lonely_python(const std::string& text) {
        return lonely({"srun", "python3", write("train.py", "import os\n" + text + "\n")});
    }

    std::string folder_;
    Environment environment_;
};

TEST_F(MeetingTest, ScriptsThatSendTheRanksHome) {
    for (const char* text :
         {"export MASTER_ADDR=localhost\nsrun python train.py",
          "export MASTER_ADDR=$(hostname -i)\nsrun python train.py",
          "export MASTER_ADDR=\"$(hostname -i)\"\nsrun python train.py",
          "MASTER_ADDR=`hostname -i` # of this host\nexport MASTER_ADDR\nsrun python train.py",
          "export MASTER_ADDR=$(scontrol show hostnames)\nexport MASTER_ADDR=127.0.0.1\n"
          "srun python train.py",
          "MASTER_ADDR=${MASTER_ADDR:-localhost} srun python train.py",
          "export MASTER_ADDR=${MASTER_ADDR:-$(hostname -i)}\nsrun python train.py"}) {
        EXPECT_TRUE(lonely_script(text)) << text;
    }
}

TEST_F(MeetingTest, AnAddressThatIsComputedReplacesALiteralOne) {
    for (const char* text :
         {"export MASTER_ADDR=localhost\n[ -n \"$SLURM_JOB_ID\" ] && export "
          "MASTER_ADDR=$(scontrol show hostnames | head -n1)\nsrun python train.py",
          "MASTER_ADDR=localhost\nMASTER_ADDR=$HEAD\nexport MASTER_ADDR\nsrun python train.py",
          "MASTER_ADDR=localhost\nMASTER_ADDR=`scontrol show hostnames | head -n1`\n"
          "srun python train.py",
          "if [ -n \"$SLURM_JOB_ID\" ]; then\n  MASTER_ADDR=$HEAD\nelse\n  MASTER_ADDR=localhost\n"
          "fi\nsrun python train.py",
          "if true; then MASTER_ADDR=$HEAD; else MASTER_ADDR=localhost; fi\nsrun python train.py",
          "MASTER_ADDR=$(head)\nexport MASTER_ADDR=${MASTER_ADDR:-localhost}\nsrun python t.py",
          "[ $N -gt 1 ] || export MASTER_ADDR=localhost\nsrun python train.py"}) {
        EXPECT_FALSE(lonely_script(text)) << text;
    }
}

TEST_F(MeetingTest, OnlyTheValueOfTheVariableIsItsOwnAddress) {
    for (const char* text : {"MASTER_ADDR=10.0.0.5 # not $(hostname -i)\nsrun python train.py",
                             "IP=$(hostname -i) MASTER_ADDR=10.0.0.5 srun python train.py",
                             "OLD_MASTER_ADDR=$(hostname -i) MASTER_ADDR=$HEAD srun python t.py"}) {
        EXPECT_FALSE(lonely_script(text)) << text;
    }
    environment_.set("MASTER_ADDR", "10.0.0.5");
    for (const char* text :
         {"export MASTER_ADDR=${MASTER_ADDR:-$(hostname -i)}\nsrun python train.py",
          "export MASTER_ADDR=\"${MASTER_ADDR:-localhost}\"\nsrun python train.py"}) {
        EXPECT_FALSE(lonely_script(text)) << text;
    }
}

TEST_F(MeetingTest, OnlyAJobThatSlurmStartsOnSeveralHostsCounts) {
    environment_.set("MASTER_ADDR", "127.0.0.1");
    for (const char* text :
         {"srun -N1 -n8 python sweep.py &", "srun --nodes=1 python sweep.py",
          "srun --nodes 1 --ntasks 8 python sweep.py", "srun -l -N 1-1 python sweep.py",
          "srun -w node7 python sweep.py", "srun --nodelist=\"$node\" python sweep.py",
          "srun -n1 python sweep.py", "FIRST=$(srun -N1 -n1 hostname)\npython sweep.py",
          "NAMES=$(srun hostname)\npython sweep.py", "srun mkdir -p /scratch/x\npython sweep.py"}) {
        EXPECT_FALSE(lonely_script(text)) << text;
    }
    for (const char* text :
         {"srun python train.py", "srun -N2 -n16 python train.py", "srun python train.py -n 1",
          "srun -w node[1-2] python train.py", "srun -w a,b python train.py",
          "srun --mpi=pmix ./train -n 1", "srun -N2 train.py -n 1",
          "srun -N \"$SLURM_JOB_NUM_NODES\" ./train\necho done", "srun -l ./train",
          "srun mkdir -p /scratch/x\nsrun python train.py", "srun ./job"}) {
        EXPECT_TRUE(lonely_script(text)) << text;
    }
}

TEST_F(MeetingTest, OfPythonOnlyWhatEveryRankDoesCounts) {
    for (const char* text :
         {"os.environ['MASTER_ADDR'] = '127.0.0.1'", "os.environ.update(MASTER_ADDR='localhost')",
          "os.environ.setdefault('MASTER_ADDR', 'localhost')"}) {
        EXPECT_TRUE(lonely_python(text)) << text;
    }
    for (const char* text :
         {"if n > 1:\n    pass\nelse:\n    os.environ['MASTER_ADDR'] = '127.0.0.1'",
          "if n == 1: os.environ['MASTER_ADDR'] = '127.0.0.1'",
          "if n == 1:\n    os.environ.update(MASTER_ADDR='localhost')",
          "if n == 1:\n    os.environ.setdefault('MASTER_ADDR', 'localhost')",
          "os.environ['MASTER_ADDR'] = 'localhost'\nos.environ['MASTER_ADDR'] = head()",
          "os.environ['MASTER_ADDR'] = 'localhost'\nif n > 1:\n"
          "    os.environ['MASTER_ADDR'] = args.head"}) {
        EXPECT_FALSE(lonely_python(text)) << text;
    }
}

TEST_F(MeetingTest, TheFirstHostMayMeetTheOthersAtLoopback) {
    environment_.set("MASTER_ADDR", "localhost");
    environment_.set("PET_NNODES", "2");
    const Words job{"python3", write("train.py", "pass\n")};
    EXPECT_TRUE(lonely(job)) << "nothing says which host this is";
    for (const char* name : {"RANK", "NODE_RANK", "PET_NODE_RANK", "SLURM_NODEID"}) {
        environment_.set(name, "0");
        EXPECT_FALSE(lonely(job)) << name;
        EXPECT_TRUE(lonely({"srun", "python3", job[1]})) << "each host gets it";
        EXPECT_TRUE(lonely_script("export MASTER_ADDR=localhost\npython3 train.py"))
            << "each host runs the script";
        environment_.set(name, "1");
        EXPECT_TRUE(lonely(job)) << name;
        environment_.set(name, "");
    }
}

}  // namespace
}  // namespace deft::tools::doctor
