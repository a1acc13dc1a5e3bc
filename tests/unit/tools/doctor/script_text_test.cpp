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
    EXPECT_THAT(shell_resets("#!/bin/sh\n#SBATCH --export NONE\nsrun ./train\n"), ElementsAre(2));
    EXPECT_THAT(shell_resets("#SBATCH --export=ALL,A=1\nsrun ./train\n"), IsEmpty());
    EXPECT_THAT(shell_resets("#SBATCH --export=NONE\nsrun deft run -- ./train\n"), IsEmpty());
}

TEST(ScriptText, LimitsOfAScript) {
    const auto limits =
        read_shell_script("j", "ulimit -c 0\nulimit -Sn 256\nulimit -n $N\n").limits;
    ASSERT_EQ(limits.size(), 1U);
    EXPECT_EQ(limits[0].where.line, 2);
    EXPECT_EQ(limits[0].most, 256U);
    EXPECT_EQ(limits[0].letter, 'n');
}

TEST(ScriptText, LimitsOfASubshellAreNotTheJobs) {
    const auto limits = [](const char* text) { return read_shell_script("j", text).limits; };
    EXPECT_THAT(limits("ulimit -v 5; ./train (x)"), SizeIs(1));
    for (const char* text : {"(ulimit -f 0; tool)\n./train", "(\n  ulimit -f 0\n  tool\n)\n./train",
                             "x=$(ulimit -v 5; tool)", "(cd /x &&\n ulimit -v 5 && tool)"}) {
        EXPECT_THAT(limits(text), IsEmpty()) << text;
    }
    EXPECT_THAT(limits("(\n  tool\n)\nulimit -v 5"), SizeIs(1));
    for (const char* text : {"(echo '(')\nulimit -v 5", "(echo \"a(\" $#) # ((\nulimit -v 5"}) {
        EXPECT_THAT(limits(text), SizeIs(1)) << text;
    }
}

// What a branch may never compute is still what the environment has.
TEST(ScriptText, OnlySurelyComputedValuesReplaceTheEnvironments) {
    EXPECT_THAT(read_shell_script("j", "export DEFT_MODE=$M\n").assignments, SizeIs(1));
    for (const char* text : {"if [ -n \"$X\" ]; then\n  export DEFT_MODE=$M\nfi\n",
                             "[ -n \"$X\" ] && export DEFT_MODE=$M\n"}) {
        EXPECT_THAT(read_shell_script("j", text).assignments, SizeIs(0)) << text;
    }
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

// What is no part of the job may do without deft.
TEST(ScriptText, ShellThatTakesThePreloadFromErrandsAlone) {
    for (const char* text :
         {"LD_PRELOAD= ls\n./train", "A=1 LD_PRELOAD=/x.so nvidia-smi -L\n./train",
          "env -u LD_PRELOAD scontrol show job\n./train", "LD_PRELOAD=/x.so tool\n./train",
          "cat >other.sh <<'END'\nunset LD_PRELOAD\nEND\n./train",
          "(unset LD_PRELOAD; ls)\n./train", "(\n  unset LD_PRELOAD\n  cp a b\n)\n./train",
          "old=$LD_PRELOAD\nunset LD_PRELOAD\nmodule load x\nexport LD_PRELOAD=$old\n./train",
          "old=\"${LD_PRELOAD:-}\"\nLD_PRELOAD=\nexport LD_PRELOAD=\"${old}\"\n./train"}) {
        EXPECT_THAT(shell_resets(text), IsEmpty()) << text;
    }
    for (const char* text :
         {"LD_PRELOAD= python3 x.py\nls", "LD_PRELOAD= tool\nls", "LD_PRELOAD= python3 a\n./b",
          "bash <<END\nunset LD_PRELOAD\n./train\nEND\n",
          "cat <<END | bash\nunset LD_PRELOAD\n./train\nEND\n",
          "cat >x <<END\na\nEND\nunset LD_PRELOAD", "echo '<< Training >>'\nunset LD_PRELOAD",
          "echo \"<<END\"\nunset LD_PRELOAD", "(unset LD_PRELOAD; ./train)\nls",
          "(\n  unset LD_PRELOAD\n  ./train\n)", "(ls)\nunset LD_PRELOAD\n./train",
          "old=$LD_PRELOAD\nunset LD_PRELOAD\n./train", "old=x\nLD_PRELOAD=$old ./train",
          "env -u LD_PRELOAD ./train"}) {
        EXPECT_THAT(shell_resets(text), SizeIs(1)) << text;
    }
}

TEST(ScriptText, ShellThatSetsVariablesForOneCommand) {
    const auto set = [](const char* text) {
        return read_shell_script("j", text).assignments.size();
    };
    EXPECT_EQ(set("DEFT_MODE=off python3 prepare.py\npython3 train.py"), 0U);
    EXPECT_EQ(set("DEFT_MODE=off tool\nA=1 ./train"), 1U);
    EXPECT_EQ(set("DEFT_MODE=off ./train"), 1U);
    EXPECT_EQ(set("DEFT_MODE=off ./train\necho done"), 1U);
    EXPECT_EQ(set("DEFT_MODE=off\nls\n./train"), 1U);
    EXPECT_EQ(set("export DEFT_MODE=off; ./prepare; ./train"), 1U);
}

TEST(ScriptText, ShellThatTakesWhatACommandPrints) {
    const auto captured = [](const char* line) {
        std::vector<bool> found;
        for (const ScriptCommand& each : read_shell_script("j", line).commands) {
            found.push_back(each.captured);
        }
        return found;
    };
    EXPECT_THAT(captured("A=$(srun hostname | sort); ./train"), ElementsAre(true, true, false));
    EXPECT_THAT(captured("A=`srun hostname` ./train"), ElementsAre(true, false));
    EXPECT_THAT(captured("echo $( (srun a); srun b ) c"), ElementsAre(false, true, true, false));
    EXPECT_THAT(captured("(srun a); srun b"), ElementsAre(false, false));
}

TEST(ScriptText, ShellThatTakesAwayNamesOfALoop) {
    for (const char* text :
         {"for v in LD_PRELOAD A; do unset $v; done",
          "for v in A LD_PRELOAD\ndo\nunset \"$v\"\ndone", "V=\"A LD_PRELOAD\"\nunset $V",
          "unset $(compgen -v LD_)", "unset \"${!LD_@}\"", "eval \"unset LD_PRELOAD\"",
          "for v in $(env); do [[ $v == LD_* ]] && unset $v; done",
          "env --unset=LD_PRELOAD ./train", "env -uLD_PRELOAD ./train"}) {
        EXPECT_THAT(shell_resets(text), SizeIs(1)) << text;
    }
}

TEST(ScriptText, ShellThatTakesAwayComputedNames) {
    const auto doubts = [](const char* text) {
        const ScriptText found = read_shell_script("job.sh", text);
        EXPECT_THAT(found.preload_resets, IsEmpty()) << text;
        return found.preload_doubts;
    };
    for (const char* text : {"unset $(env | cut -d= -f1)", "unset `compgen -e`",
                             "unset $(env | grep -v '^PATH=' | cut -d= -f1)",
                             "mapfile -t names < <(compgen -e)\nunset \"${names[@]}\"",
                             "env | cut -d= -f1 | while read -r v; do unset \"$v\"; done",
                             "for v in $(compgen -e); do\n  unset $v\ndone",
                             "eval $(env | sed 's/=.*//; s/^/unset /')"}) {
        EXPECT_THAT(doubts(text), SizeIs(1)) << text;
    }
    for (const char* text :
         {"unset $(env | grep -o '^SLURM_[A-Z_]*')", "unset ${!SLURM_@}", "unset $name",
          "for v in A B; do unset $v; done", "unset -f $(declare -F)",
          "unset $(env | grep -v ^LD_ | cut -d= -f1)", "unset LD_LIBRARY_PATH",
          "for v in LD_LIBRARY_PATH BUILD_DIR; do unset $v; done", "eval \"$(conda shell.bash)\"",
          "unset $(compgen -e)\ndeft run -- ./train"}) {
        EXPECT_THAT(doubts(text), IsEmpty()) << text;
    }
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

TEST(ScriptText, PythonThatTakesAwayNamesOfALoop) {
    for (const char* text :
         {"for k in list(os.environ):\n    if k.startswith('LD_'):\n        del os.environ[k]",
          "for k in ('LD_PRELOAD', 'A'): os.environ.pop(k, None)", "os.unsetenv('LD_PRELOAD')",
          "env = {k: v for k, v in os.environ.items() if not k.startswith('LD_')}",
          "os.environ = {'PATH': '/bin'}", "os.system('unset LD_PRELOAD; ./train')",
          "subprocess.check_call('LD_PRELOAD= ./train', shell=True)"}) {
        EXPECT_THAT(python_resets(text), SizeIs(1)) << text;
    }
    const auto doubts = [](const char* text) {
        const ScriptText found = read_python_script("job.py", text);
        EXPECT_THAT(found.preload_resets, IsEmpty()) << text;
        return found.preload_doubts;
    };
    for (const char* text :
         {"for k in list(os.environ): os.environ.pop(k)",
          "for k in os.environ.copy():\n    if k not in KEEP:\n        del os.environ[k]",
          "env = {k: v for k, v in os.environ.items() if k in keep}"}) {
        EXPECT_THAT(doubts(text), SizeIs(1)) << text;
    }
    for (const char* text :
         {"for k in list(os.environ):\n    if k.startswith('SLURM_'):\n        del os.environ[k]",
          "for k in ('A', 'B'): os.environ.pop(k, None)", "os.environ.pop(name, None)",
          "print({k: v for k, v in os.environ.items() if k.startswith('NCCL')})",
          "env = {k: v for k, v in os.environ.items() if not k.startswith('SLURM_')}",
          "os.environ = {**os.environ, 'A': '1'}", "os.system('ls')"}) {
        EXPECT_THAT(doubts(text), IsEmpty()) << text;
    }
}

TEST(ScriptText, PythonWithABackEndWithoutNccl) {
    const auto others = [](const char* text) {
        return read_python_script("t.py", text).other_backends;
    };
    EXPECT_THAT(others("dist.init_process_group(\"gloo\")"), SizeIs(1));
    EXPECT_THAT(others("init_process_group(init_method='env://', backend='mpi')"), SizeIs(1));
    for (const char* text :
         {"dist.init_process_group('nccl')", "init_process_group()",
          "init_process_group(backend=args.backend, init_method='env://')",
          "init_process_group('cpu:gloo,cuda:nccl')", "dist.new_group(backend='gloo')",
          "init_process_group('gloo' if cpu else 'nccl')",
          "init_process_group('gloo')\ng = new_group(backend='nccl')"}) {
        EXPECT_THAT(others(text), IsEmpty()) << text;
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

TEST(ScriptText, EmptyValuesThatPythonSurelySets) {
    const auto assigned = [](const char* text) {
        return read_python_script("t.py", text).assignments;
    };
    for (const char* text :
         {"os.environ['X'] = ''", "os.environ[\"X\"]=\"\"  # none", "environ['X'] = ''; f()",
          "os.environ.setdefault('X', '')", "os.putenv('X', \"\")"}) {
        ASSERT_THAT(assigned(text), SizeIs(1)) << text;
        EXPECT_EQ(assigned(text)[0].name, "X") << text;
        EXPECT_EQ(assigned(text)[0].value, "") << text;
    }
    for (const char* text :
         {"if os.environ.get(\"X\", \"\") != \"\":", "f(os.environ.get('X', ''), k=1)",
          "if args.cpu: os.environ['X'] = ''", "if args.cpu:\n    os.environ['X'] = ''",
          "os.environ['X'] = '' if args.cpu else '0'", "os.environ['X'] == ''",
          "os.environ['X'] = '' + f()", "x = os.environ.setdefault('X', '') or f()",
          "if os.environ.get('X', 'IB') != 'Socket':", "os.environ['X'] = \"\"\"a\"\"\""}) {
        EXPECT_THAT(assigned(text), IsEmpty()) << text;
    }
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
