// SPDX-License-Identifier: Apache-2.0
// What `deft doctor` reads out of commands and launch scripts, above all where nothing is amiss.
#include "tools/doctor/command_facts.h"

#include <gmock/gmock.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tools/doctor/container_client.h"
#include "tools/doctor/rendezvous.h"
#include "tools/doctor/script_lines.h"

namespace deft::tools::doctor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;
using Words = std::vector<std::string>;

class CommandFactsTest : public testing::Test {
protected:
    CommandFactsTest() {
        char name[] = "/tmp/deft-command-facts-XXXXXX";
        folder_ = ::mkdtemp(name);
        environment_.set("PATH", folder_ + ":/usr/bin:/bin");
    }
    ~CommandFactsTest() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    std::string write(const std::string& name, const std::string& text) {
        const std::string path = folder_ + "/" + name;
        std::ofstream(path, std::ios::binary) << text;
        std::filesystem::permissions(path, std::filesystem::perms::all);
        return path;
    }
    CommandFacts read(const Words& words) { return read_command(words, environment_).command; }
    // A launch script with this line, before its last.
    CommandFacts with_line(const std::string& line) {
        return read({write("job.sh", "#!/bin/sh\n" + line + "\ntrue\n")});
    }

    std::string folder_;
    Environment environment_;
};

bool raised(const CommandFacts& facts) {
    return std::any_of(facts.programs.begin(), facts.programs.end(),
                       [](const ProgramFacts& program) { return !program.raised.empty(); });
}

TEST_F(CommandFactsTest, RaisedWrappersCountOnlyBeforeTheJob) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "only root can make a program of another user";
    }
    for (const char* name : {"su", "sg"}) {
        const std::string program = folder_ + "/" + name;
        std::filesystem::copy_file("/bin/true", program);
        ASSERT_EQ(::chown(program.c_str(), 65534, 65534), 0);
        ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
    }
    EXPECT_TRUE(raised(read({"su", "bob", "-c", "./train"})));
    EXPECT_TRUE(raised(with_line("su bob -c 'cd /work; python3 train.py'")));
    EXPECT_FALSE(raised(with_line("su bob -c cleanup")));
    EXPECT_FALSE(raised(with_line("sg docker -c \"docker pull x\"")));
    for (const char* text : {"deft run -- python3 x.py", "exec /opt/deft/bin/deft run -- ./train",
                             "LD_PRELOAD=/opt/libnccl-net-deft.so ./train"}) {
        EXPECT_FALSE(raised(read({"su", "-", "bob", "-c", text}))) << text;
        EXPECT_FALSE(raised(read({"su", "bob", "-c", text}))) << text;
        EXPECT_FALSE(raised(read({"sg", "docker", text}))) << text;
    }
}

TEST(Rendezvous, OnlyTorchrunsOwnOptionsCount) {
    const Environment none;
    for (const Words& words :
         {Words{"torchrun", "--nnodes", "2", "train.py"},
          Words{"torchrun", "--no-python", "-r", "3", "--nnodes=2", "./train"},
          Words{"torchrun", "--nnodes", "2", "-m", "train", "--data", "$DATA"},
          Words{"torchrun", "--nnodes", "2", "train.py", "--master-addr", "node1"}}) {
        EXPECT_THAT(lonely_rendezvous(words, none), HasSubstr("--nnodes 2")) << words.back();
    }
    for (const Words& words :
         {Words{"torchrun", "--nproc-per-node", "8", "train.py", "--nnodes", "2"},
          Words{"torchrun", "--nproc-per-node", "8", "--", "train.py", "--nnodes", "2"},
          Words{"torchrun", "--nnodes", "2", "$RDZV_ARGS", "train.py"},
          Words{"torchrun", "--nnodes", "2", "--rdzv-endpoint", "${HEAD}:29500", "train.py"},
          Words{"torchrun", "$ARGS", "--nnodes", "2", "train.py"},
          // Cut off at a back tick.
          Words{"torchrun", "--nnodes", "2", "--rdzv-endpoint="},
          Words{"torchrun", "--standalone", "--nnodes", "2", "train.py"}}) {
        EXPECT_EQ(lonely_rendezvous(words, none), "") << words.back();
    }
}

TEST(Rendezvous, OwnNamesOfHosts) {
    EXPECT_EQ(own_name_at("127.0.0.1 localhost\n127.0.1.1\tnode1.lan node1\n", "node1"),
              "127.0.1.1");
    EXPECT_EQ(own_name_at("::1 node1 localhost\n127.0.1.1 node1 # Debian\n", "node1.lan"),
              "127.0.1.1");
    EXPECT_EQ(own_name_at("127.0.1.1 node1\n10.0.0.1 node1\n", "node1"), "");
    EXPECT_EQ(own_name_at("127.0.0.1 localhost\n#127.0.1.1 node1\n", "node1"), "");
    EXPECT_EQ(own_name_at("127.0.1.1 node11\n", "node1"), "");
}

TEST(ContainerClient, NetworksOfJobsOnSeveralHosts) {
    const auto network = [](std::initializer_list<const char*> options,
                            std::initializer_list<const char*> job) {
        Words words{"docker", "run"};
        words.insert(words.end(), options.begin(), options.end());
        words.emplace_back("image");
        words.insert(words.end(), job.begin(), job.end());
        return container_network(words);
    };
    EXPECT_THAT(network({}, {"torchrun", "--nnodes", "2", "x.py"}),
                StartsWith("docker run without --network=host"));
    for (const auto& job : {std::initializer_list<const char*>{"torchrun", "--nnodes=1:4", "x.py"},
                            {"deft", "run", "--", "torchrun", "--rdzv_endpoint", "n1:1", "x.py"},
                            {"env", "MASTER_ADDR=10.0.0.1", "python", "x.py"},
                            {"mpirun", "--hostfile", "h", "./train"},
                            {"mpirun", "-H", "a,b", "./train"},
                            {"accelerate", "launch", "--num_machines", "2", "x.py"},
                            {"sh", "-c", "torchrun --nnodes 2 x.py"}}) {
        EXPECT_NE(network({"--gpus", "all"}, job), "") << *job.begin();
        EXPECT_NE(network({"--rm", "-it", "--net", "bridge"}, job), "") << *job.begin();
        for (const auto& options : {std::initializer_list<const char*>{"--network=host"},
                                    {"--net", "mine"},
                                    {"--pod", "P"},
                                    {"--pod=P"},
                                    {"$OPTIONS"}}) {
            EXPECT_EQ(network(options, job), "") << *options.begin();
        }
    }
    EXPECT_NE(network({"-e", "MASTER_ADDR=node1"}, {"python", "x.py"}), "");
    for (const auto& job :
         {std::initializer_list<const char*>{"deft", "run", "--", "torchrun", "--nproc-per-node",
                                             "8", "x.py"},
          {"torchrun", "--nnodes", "1", "--master-addr", "node1", "x.py"},
          {"torchrun", "--nnodes=1:1", "--rdzv-endpoint=localhost:0", "x.py"},
          {"torchrun", "--nnodes", "$N", "x.py"},
          {"env", "MASTER_ADDR=127.0.0.1", "python", "x.py"},
          {"python", "-m", "vllm.entrypoints.openai.api_server", "--host", "0.0.0.0"},
          {}}) {
        EXPECT_EQ(network({"--gpus", "all"}, job), "");
    }
    EXPECT_EQ(container_network({"docker", "exec", "c", "torchrun", "--nnodes", "2", "x.py"}), "");
}

TEST_F(CommandFactsTest, OnlyTheJobsContainerCounts) {
    EXPECT_THAT(with_line("docker run -d -e MASTER_ADDR=n1 redis").container_network, IsEmpty());
    const CommandFacts job = with_line("docker run -e MASTER_ADDR=n1 image python3 train.py");
    EXPECT_THAT(job.container_network, HasSubstr("--network=host"));
    EXPECT_THAT(job.container_from, HasSubstr("job.sh:2"));
    EXPECT_TRUE(job.container_client);
    EXPECT_FALSE(with_line("docker run -d redis").container_client);
}

TEST_F(CommandFactsTest, GpusThatAClientKeepsOut) {
    const Words job{"image", "deft", "run", "--", "python3", "train.py"};
    const auto hidden = [&](const Words& options) {
        Words words{"docker", "run"};
        words.insert(words.end(), options.begin(), options.end());
        words.insert(words.end(), job.begin(), job.end());
        return read(words).hidden_gpus;
    };
    for (const Words& options :
         {Words{"-e", "NVIDIA_VISIBLE_DEVICES=void"}, Words{"--env=NVIDIA_VISIBLE_DEVICES=none"},
          Words{"-eNVIDIA_VISIBLE_DEVICES=none"}}) {
        EXPECT_NE(hidden(options), "") << options[0];
    }
    for (const Words& options :
         {Words{"-e", "NVIDIA_VISIBLE_DEVICES=all"}, Words{"-e", "NVIDIA_VISIBLE_DEVICES"},
          Words{"--gpus", "all", "-e", "NVIDIA_VISIBLE_DEVICES=void"}}) {
        EXPECT_EQ(hidden(options), "") << options[0];
    }
    environment_.set("NVIDIA_VISIBLE_DEVICES", "void");
    EXPECT_EQ(hidden({"--rm"}), "") << "a client does not hand its own on";
    EXPECT_EQ(hidden({"-e", "NVIDIA_VISIBLE_DEVICES"}), "void");
}

TEST_F(CommandFactsTest, LineEndsOfTheScriptsOwnLines) {
    const auto ends = [&](const std::string& text) {
        return read({"sh", write("job.sh", text)}).line_ends;
    };
    const auto found = ends("#!/bin/sh\n# a\r\n\nexport A=1\r\ntrue\n");
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].line, 4);
    EXPECT_EQ(found[0].text, "export A=1");
    EXPECT_THAT(ends("#!/bin/sh\r\ntrue\n"), SizeIs(1));
    EXPECT_THAT(ends("cat <<EOF\nx\nEOF\nexport A=1\r\n"), SizeIs(1));
    EXPECT_THAT(ends("cat <<EOF\r\nx\r\nEOF\r\n"), SizeIs(1));
    EXPECT_THAT(ends("echo $((1 << 2)) <<< word\nexport A=1\r\n"), SizeIs(1));
    using namespace std::string_literals;
    for (const std::string& text :
         {"#!/bin/sh\n# a comment\r\n  # another\r\ntrue\n"s,
          "#!/bin/sh\nexit 0\n\x1f\x8b\x08\0x\r\ny\r\n"s, "exit 0\nBZh91AY&SY\x01\x02\r\nx\r\n"s,
          "cat <<-'EOF'\nGET / HTTP/1.1\r\n\r\n\tEOF\ntrue\n"s, "true\n"s, ""s}) {
        EXPECT_THAT(ends(text), IsEmpty()) << text;
    }
}

TEST_F(CommandFactsTest, DefaultsOfAScriptYieldToWhatIsSet) {
    const std::string script =
        write("train.py", "import os\nos.environ.setdefault('CUDA_VISIBLE_DEVICES', '')\n");
    EXPECT_EQ(read_command({"python3", script}, environment_)
                  .environment.get("CUDA_VISIBLE_DEVICES")
                  .value_or("unset"),
              "");
    environment_.set("CUDA_VISIBLE_DEVICES", "0");
    EXPECT_EQ(
        *read_command({"python3", script}, environment_).environment.get("CUDA_VISIBLE_DEVICES"),
        "0");
}

bool lacks_interpreter(const CommandFacts& facts) {
    return std::any_of(
        facts.programs.begin(), facts.programs.end(),
        [](const ProgramFacts& program) { return !program.missing_interpreter.empty(); });
}

TEST_F(CommandFactsTest, InterpretersOfWhatALauncherStarts) {
    const std::string wrapper = write("wrapper.sh", "#!/bin/sh\nexec python3 \"$@\"\n");
    const std::string script = write("train.py", "#!/usr/bin/env no-python\n");
    write("srun", "#!/bin/sh\n");
    EXPECT_TRUE(lacks_interpreter(read({"srun", "-n", "2", script})));
    EXPECT_FALSE(lacks_interpreter(read({"srun", wrapper, script}))) << "it is an operand";
    EXPECT_FALSE(lacks_interpreter(read({"srun", "-l", "cat", script}))) << "it is an operand";
    EXPECT_FALSE(lacks_interpreter(read({"srun", "--container-image=x", script})));
    EXPECT_FALSE(lacks_interpreter(read({"srun", "--container-image", "x", script})));
    EXPECT_THAT(read({"srun", "--container-image=x", "python9", "t.py"}).programs, SizeIs(1))
        << "that of the image is not here";
    // What they make of PATH nobody knows.
    for (const char* line : {"conda activate x", "module load python"}) {
        EXPECT_FALSE(lacks_interpreter(with_line(line + ("\nsrun " + script)))) << line;
        EXPECT_FALSE(lacks_interpreter(with_line(line + ("\n" + script)))) << line;
    }
    write("train.py", "#!/opt/no/python\n");
    EXPECT_TRUE(lacks_interpreter(with_line(script))) << "PATH has no say in it";
}

TEST_F(CommandFactsTest, FirstLinesThatWorkInSpiteOfACr) {
    const auto lacks = [&](const std::string& line) {
        return lacks_interpreter(read({write("job", line + "\nexit\n")}));
    };
    write("perl", "");
    EXPECT_TRUE(lacks("#!/bin/sh -e\r"));
    EXPECT_FALSE(lacks("#!/usr/bin/env -S sh -e\r"));
    EXPECT_FALSE(lacks("#!/usr/bin/env  -S sh -e\r"));
    EXPECT_FALSE(lacks("#!/usr/bin/env\t-S sh -e\r"));
    EXPECT_FALSE(lacks("#!" + folder_ + "/perl -w\r"));
}

TEST_F(CommandFactsTest, AnSrunWhoseOutputIsTakenIsNotTheJobs) {
    write("srun", "#!/bin/sh\n");
    EXPECT_TRUE(with_line("srun python3 -c 'print(1)'").srun);
    EXPECT_FALSE(with_line("A=$(srun python3 -c 'print(1)')").srun);
    EXPECT_FALSE(with_line("A=`srun python3 a.py`").srun);
    EXPECT_TRUE(with_line("A=$(date); srun python3 a.py").srun);
}

TEST_F(CommandFactsTest, AnErrandMayLoseTheEnvironment) {
    write("srun", "#!/bin/sh\n");
    EXPECT_EQ(with_line("srun --export=NONE hostname").loss, "");
    EXPECT_NE(with_line("srun --export=NONE ./train").loss, "");
    EXPECT_NE(with_line("srun --export=NONE ./other").loss, "");
    EXPECT_NE(with_line("srun --export=NONE python3 x.py").loss, "");
    EXPECT_NE(read({"srun", "--export=NONE", "hostname"}).loss, "") << "it is what is asked about";
}

TEST_F(CommandFactsTest, WhatAScriptUnsetsIsNotTheEnvironments) {
    environment_.set("NCCL_SOCKET_IFNAME", "lo");
    const auto value = [&](const std::string& line) {
        return read_command({"sh", write("job.sh", line + "\npython3 x.py\n")}, environment_)
            .environment.get("NCCL_SOCKET_IFNAME")
            .value_or("unset");
    };
    EXPECT_EQ(value("unset NCCL_SOCKET_IFNAME"), "unset");
    EXPECT_EQ(value("unset OTHER NCCL_SOCKET_IFNAME"), "unset");
    EXPECT_EQ(value("if x; then\n  unset NCCL_SOCKET_IFNAME\nfi"), "lo");
    EXPECT_EQ(value("unset -f NCCL_SOCKET_IFNAME"), "lo");
}

TEST_F(CommandFactsTest, FilesOfAnImageAreNotThisHosts) {
    for (const char* name : {"apptainer", "srun", "enroot"}) {
        write(name, "#!/bin/sh\n");
    }
    for (const Words& client : {Words{"apptainer", "exec", "x.sif"},
                                Words{"srun", "--container-image=x"}, Words{"enroot", "start"}}) {
        for (const Words& job : {Words{"deft", "run", "--", "python9", "/opt/no.py"},
                                 Words{"python9", "/opt/no.py"}}) {
            Words words = client;
            words.insert(words.end(), job.begin(), job.end());
            for (const ProgramFacts& program : read(words).programs) {
                EXPECT_NE(program.file, "") << client[0] << " " << program.word;
            }
        }
    }
}

TEST_F(CommandFactsTest, AValueThatIsComputedIsUnknown) {
    const auto value = [&](const std::string& line) {
        return read_command({"sh", write("job.sh", line + "\npython3 x.py\n")}, environment_)
            .environment.get("CUDA_VISIBLE_DEVICES")
            .value_or("unset");
    };
    EXPECT_EQ(value("export CUDA_VISIBLE_DEVICES="), "");
    EXPECT_EQ(value("CUDA_VISIBLE_DEVICES=\nCUDA_VISIBLE_DEVICES=$SLURM_LOCALID"), "unset");
    EXPECT_EQ(value("CUDA_VISIBLE_DEVICES=`choose`"), "unset");
    EXPECT_EQ(value("CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-3}"), "3");
    environment_.set("CUDA_VISIBLE_DEVICES", "1");
    EXPECT_EQ(value("CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-3}"), "1");
    EXPECT_EQ(value("CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$(choose)}"), "1");
    environment_.set("LD_LIBRARY_PATH", "/opt/lib");
    EXPECT_EQ(*read_command({"sh", write("job.sh", "LD_LIBRARY_PATH=$HOME/lib:$LD_LIBRARY_PATH\n")},
                            environment_)
                   .environment.get("LD_LIBRARY_PATH"),
              "/opt/lib")
        << "what was there is most likely in it";
}

}  // namespace
}  // namespace deft::tools::doctor
