// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/script_text.h"

#include <gmock/gmock.h>

namespace deft::tools::doctor {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<int> lines(const std::vector<ScriptLine>& found) {
    std::vector<int> numbers;
    for (const ScriptLine& each : found) {
        numbers.push_back(each.line);
    }
    return numbers;
}

std::vector<int> shell_resets(const char* text) {
    return lines(read_shell_script("job.sh", text).preload_resets);
}

std::vector<int> python_resets(const char* text) {
    return lines(read_python_script("job.py", text).preload_resets);
}

TEST(ScriptText, ShellThatTakesThePreloadAway) {
    for (const char* line :
         {"unset LD_PRELOAD", "export LD_PRELOAD=", "export LD_PRELOAD=/opt/libjemalloc.so",
          "LD_PRELOAD=/opt/x.so ./train", "env -u LD_PRELOAD ./train", "exec -c ./train",
          "export -n LD_PRELOAD", "if true; then unset LD_PRELOAD; fi", "A=1 LD_PRELOAD= ./train",
          "LD_PRELOAD=\"\" exec ./train"}) {
        EXPECT_THAT(shell_resets(line), ElementsAre(1)) << line;
    }
}

TEST(ScriptText, WhatSlurmReadsOfAScript) {
    EXPECT_THAT(shell_resets("#!/bin/sh\n#SBATCH --export=NONE\nsrun ./train\n"), ElementsAre(2));
    EXPECT_THAT(shell_resets("#SBATCH --export=ALL,A=1\nsrun ./train\n"), IsEmpty());
    EXPECT_THAT(shell_resets("#SBATCH --export=NONE\nsrun deft run -- ./train\n"), IsEmpty());
}

TEST(ScriptText, LimitsOfAScript) {
    const auto limits =
        read_shell_script("j", "ulimit -c 0\nulimit -Sn 256\nulimit -n $N\n").limits;
    ASSERT_EQ(limits.size(), 1U);
    EXPECT_EQ(limits[0].where.line, 2);
    EXPECT_EQ(limits[0].files, 256U);
}

TEST(ScriptText, ShellThatKeepsThePreload) {
    for (const char* line :
         {"export LD_PRELOAD=/opt/x.so:$LD_PRELOAD", "LD_PRELOAD=\"$LD_PRELOAD /opt/x.so\" ./train",
          "export LD_PRELOAD=${LD_PRELOAD}:/opt/x.so", "echo unset LD_PRELOAD",
          "# unset LD_PRELOAD", "export LD_PRELOAD=/usr/lib/libnccl-net-deft.so",
          "unset LD_PRELOADS", "env -u OTHER ./train", "exec ./train"}) {
        EXPECT_THAT(shell_resets(line), IsEmpty()) << line;
    }
    EXPECT_THAT(shell_resets("unset LD_PRELOAD\ndeft run -- ./train"), IsEmpty());
    EXPECT_THAT(shell_resets("deft run -- true\nunset LD_PRELOAD\n./train"), ElementsAre(2));
}

TEST(ScriptText, ShellCommandsAndAssignments) {
    const ScriptText script = read_shell_script(
        "job.sh",
        "#!/bin/sh\nset -e\nexport NCCL_NET=Socket A=\"$B\"\nmpirun \\\n  -np 2 './my "
        "train' | tee log\n");
    ASSERT_THAT(script.assignments, SizeIs(1));
    EXPECT_EQ(script.assignments[0].name, "NCCL_NET");
    EXPECT_EQ(script.assignments[0].value, "Socket");
    EXPECT_EQ(script.assignments[0].line, 3);
    ASSERT_THAT(script.commands, SizeIs(3));
    EXPECT_THAT(script.commands[1].words, ElementsAre("mpirun", "-np", "2", "./my train"));
    EXPECT_EQ(script.commands[1].line, 4);
    EXPECT_FALSE(script.commands[1].last);
    EXPECT_TRUE(script.commands[2].last);
}

TEST(ScriptText, ShellThatSetsPythonsPathAnew) {
    EXPECT_THAT(lines(read_shell_script("j",
                                        "export PYTHONPATH=/x\nunset PYTHONPATH\n"
                                        "export PYTHONPATH=/x:$PYTHONPATH\n")
                          .python_path_resets),
                ElementsAre(1, 2));
}

TEST(ScriptText, PythonThatTakesThePreloadAway) {
    for (const char* line :
         {"os.environ['LD_PRELOAD'] = '/opt/x.so'", "os.environ.pop('LD_PRELOAD', None)",
          "del os.environ[\"LD_PRELOAD\"]", "env.pop('LD_PRELOAD')", "os.execve(p, a, {'A': '1'})",
          "os.putenv('LD_PRELOAD', '')", "subprocess.run(['./train'], env={'A': '1'})",
          "subprocess.Popen(c, env={})"}) {
        EXPECT_THAT(python_resets(line), ElementsAre(1)) << line;
    }
    for (const char* line :
         {"print(os.environ['LD_PRELOAD'])", "if os.environ.get('LD_PRELOAD') == 'x': pass",
          "os.environ['LD_PRELOAD'] = '/opt/x.so:' + os.environ['LD_PRELOAD']",
          "subprocess.run(c, env={**os.environ, 'A': '1'})", "# del os.environ['LD_PRELOAD']",
          "subprocess.run(c, env=environment)"}) {
        EXPECT_THAT(python_resets(line), IsEmpty()) << line;
    }
}

TEST(ScriptText, PythonThatOpensNcclByHandle) {
    for (const char* line :
         {"nccl = ctypes.CDLL('libnccl.so.2')", "cdll.LoadLibrary(\"/opt/libnccl.so.2\")",
          "import jax", "import jax.numpy as jnp", "from vllm import LLM", "import vllm, torch"}) {
        EXPECT_THAT(read_python_script("t.py", line).handles, SizeIs(1)) << line;
    }
    for (const char* line : {"ctypes.CDLL('libc.so.6')", "import jaxtyping", "import torch",
                             "print('libnccl.so.2')", "CDLL('libnccl-net-deft.so') # libnccl"}) {
        EXPECT_THAT(read_python_script("t.py", line).handles, IsEmpty()) << line;
    }
    EXPECT_THAT(lines(read_python_script("t.py", "x\nctypes.CDLL(p, os.RTLD_DEEPBIND)").deepbinds),
                ElementsAre(2));
}

TEST(ScriptText, PythonAssignments) {
    const ScriptText script = read_python_script(
        "t.py",
        "os.environ['NCCL_NET'] = 'IB'\nos.environ.setdefault('DEFT_MODE', 'off')\n"
        "os.environ[name] = 'x'\nif os.environ['A'] == 'b': pass\n");
    ASSERT_THAT(script.assignments, SizeIs(2));
    EXPECT_EQ(script.assignments[0].name + "=" + script.assignments[0].value, "NCCL_NET=IB");
    EXPECT_EQ(script.assignments[1].name + "=" + script.assignments[1].value, "DEFT_MODE=off");
}

TEST(ScriptText, PythonUpdates) {
    const auto pairs = [](const char* line) {
        std::vector<std::string> all;
        for (const auto& each : read_python_script("t.py", line).assignments) {
            all.push_back(each.name + "=" + each.value);
        }
        return all;
    };
    EXPECT_THAT(pairs("os.environ.update(NCCL_NET='IB', A=\"b=c\", B=x)"),
                ElementsAre("NCCL_NET=IB", "A=b=c"));
    EXPECT_THAT(pairs("os.environ |= {'A': 'x:y', \"B\" : 'z'}"), ElementsAre("A=x:y", "B=z"));
    EXPECT_THAT(pairs("os.environ.update(other)"), IsEmpty());
    EXPECT_THAT(pairs("os.environ.update({'A':"), IsEmpty());
    EXPECT_THAT(pairs("d.update(A='b')"), IsEmpty());
}

TEST(ScriptText, WhetherPyTorchIsImportedInAnyCase) {
    const auto imports = [](const char* text) {
        return read_python_script("job.py", text).imports_torch;
    };
    EXPECT_TRUE(imports("import os\nimport torch\n"));
    EXPECT_TRUE(imports("from torch.nn import Linear\n"));
    EXPECT_FALSE(imports("try:\n    import torch\nexcept ImportError:\n    pass\n"));
    EXPECT_FALSE(imports("import torchvision\n"));
    EXPECT_FALSE(imports("import sys\nsys.path.append('/x')\nimport torch\n"));
}

}  // namespace
}  // namespace deft::tools::doctor
