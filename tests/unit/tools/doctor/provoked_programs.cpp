// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tools/doctor/provoked.h"

namespace deft::tools::doctor {

namespace {

void only_processes(Facts& facts, const ProcessFacts& one) {
    facts = Facts();
    facts.processes = {one};
}

}  // namespace

std::vector<Case> program_cases() {
    return {
        {Finding::CommandNotFound, "./train: command not found",
         [](Facts& f) { f.command->programs[0].file = ""; }},
        {Finding::CommandNotFound, "train.py: no such file",
         [](Facts& f) {
             f.command->programs.push_back({});
             f.command->programs.back().word = "train.py";
             f.command->programs.back().operand = true;
         }},
        {Finding::PackageMissing, "/opt/python3 has no package torch",
         [](Facts& f) { f.command->without_torch = "/opt/python3"; }},
        {Finding::CommandNotExecutable, "./train cannot",
         [](Facts& f) { f.command->programs[0].executable = false; }},
        {Finding::InterpreterMissing, "/opt/python",
         [](Facts& f) { f.command->programs[0].missing_interpreter = "/opt/python"; }},
        {Finding::ProgramOtherMachine, "./train is built",
         [](Facts& f) { f.command->programs[0].this_machine = false; }},
        {Finding::ProgramOtherLibc, "musl",
         [](Facts& f) { f.command->programs[0].c_library = "musl"; }},
        {Finding::GlibcTooOld, "2.17", [](Facts& f) { f.command->programs[0].glibc = "2.17"; }},
        {Finding::ProgramStatic, "statically linked",
         [](Facts& f) { f.command->programs[0].dynamic = false; }},
        {Finding::ProgramRaised, "setuid",
         [](Facts& f) { f.command->programs[0].raised = "setuid"; }},
        {Finding::ProgramSanitized, "./train is linked to libasan.so.8",
         [](Facts& f) { f.command->programs[0].sanitizer = "libasan.so.8"; }},
        {Finding::PreloadDoubtful, "job.sh:4 takes away",
         [](Facts& f) {
             f.command->preload_doubts = {{"job.sh", 4, "unset $(compgen -e)"}};
         }},
        {Finding::BackendOther, "train.py:9 asks PyTorch",
         [](Facts& f) {
             f.command->other_backends = {{"train.py", 9, "init_process_group('gloo')"}};
         }},
        {Finding::PreloadLost, "job.sh:3: ssh hands",
         [](Facts& f) {
             f.command->loss = "ssh hands nothing; put deft behind it";
             f.command->loss_from = "job.sh:3";
         }},
        {Finding::ScriptLineEnds, "job.sh:2 ends in CR LF",
         [](Facts& f) {
             f.command->line_ends = {{"job.sh", 2, "export DEFT_MODE=exact"}};
         }},
        {Finding::ContainerNetwork, "job.sh:3: docker run without",
         [](Facts& f) {
             f.command->container_network = "docker run without it; docker run --network=host";
             f.command->container_from = "job.sh:3";
         }},
        {Finding::RendezvousLonely, "torchrun --nnodes 2",
         [](Facts& f) { f.command->rendezvous = "torchrun --nnodes 2 meets at ::1; name it"; }},
        {Finding::ContainerUnseen, "apptainer keeps",
         [](Facts& f) { f.command->container = "apptainer keeps it; bind the folder"; }},
        {Finding::PreloadReset, "job.sh:4",
         [](Facts& f) {
             f.command->preload_resets = {{"job.sh", 4, "unset LD_PRELOAD"}};
         }},
        {Finding::NcclByHandle, "train.py:7",
         [](Facts& f) {
             f.command->handles = {{"train.py", 7, "CDLL('libnccl.so.2')"}};
         }},
        {Finding::NcclByHandle, "./train looks",
         [](Facts& f) { f.command->programs[0].nccl_by_handle = true; }},
        {Finding::NcclDeepbind, "train.py:8",
         [](Facts& f) {
             f.command->deepbinds = {{"train.py", 8, "RTLD_DEEPBIND"}};
         }},
        {Finding::LibraryMissing, "is neither in",
         [](Facts& f) {
             f.preload->entries.clear();
             f.preload->library = "";
             f.preload->library_problem = "libnccl-net-deft.so is neither in a nor in b";
             f.command->assumed = true;
         }},
        {Finding::LibraryVersion, "is 0.9, this command is 1.0",
         [](Facts& f) { f.preload->entries[0].version = "0.9"; }},
        {Finding::PreloadFileMissing, "no such file",
         [](Facts& f) {
             f.preload->entries[0].path = "";
             f.preload->entries[0].problem = "no such file";
         }},
        {Finding::PreloadUnusable, "not a library",
         [](Facts& f) { f.preload->entries[0].problem = "not a library of this machine"; }},
        {Finding::PreloadPathSplit, "/opt/a b/",
         [](Facts& f) { f.preload->split_path = "/opt/a b/libnccl-net-deft.so"; }},
        {Finding::GuestAlone, "next to it",
         [](Facts& f) {
             f.preload->entries[0].library = false;
             f.preload->entries[0].guest = true;
             f.preload->entries[0].version = "";
         }},
        {Finding::LibraryVersion, "next to",
         [](Facts& f) {
             f.preload->entries[0].library = false;
             f.preload->entries[0].guest = true;
             f.preload->entries[0].version = "0.9";
         }},
        {Finding::PreloadHooked, "/opt/libprofile.so, which has NCCL's functions, behind deft",
         [](Facts& f) {
             PreloadEntry other;
             other.name = "/opt/libprofile.so";
             other.from = "LD_PRELOAD";
             other.hooks_nccl = true;
             f.preload->entries.push_back(other);
         }},
        {Finding::PreloadHostWide, "/etc/ld.so.preload names",
         [](Facts& f) { f.preload->entries[0].from = "/etc/ld.so.preload"; }},
        {Finding::UcxPreloaded, "names /usr/lib/libdeft-ucx.so",
         [](Facts& f) {
             PreloadEntry module;
             module.name = module.path = "/usr/lib/libdeft-ucx.so";
             module.from = "LD_PRELOAD";
             module.ucx_module = true;
             f.preload->entries.push_back(module);
         }},
        {Finding::PreloadTwice, "/opt/libnccl-net-deft.so",
         [](Facts& f) {
             f.preload->entries.push_back(f.preload->entries[0]);
             f.preload->entries[1].path = "/opt/libnccl-net-deft.so";
         }},
    };
}

std::vector<Case> process_cases() {
    const auto with = [](std::function<void(ProcessFacts&)> change) {
        return [change](Facts& f) {
            ProcessFacts one = process();
            change(one);
            only_processes(f, one);
        };
    };
    return {
        {Finding::ProcessMissing, "no process 42", with([](auto& p) { p.missing = true; })},
        {Finding::ProcessMissing, "has ended", with([](auto& p) { p.state = 'Z'; })},
        {Finding::ProcessUnreadable, "Permission denied",
         with([](auto& p) { p.problem = "Permission denied"; })},
        {Finding::ProcessStopped, "is stopped", with([](auto& p) { p.state = 'T'; })},
        {Finding::PreloadNotReached, "process 42 (python3)", with([](auto& p) {
             p.library = "";
             p.preload.reset();
         })},
        {Finding::ProgramStatic, "process 42", with([](auto& p) {
             p.library = "";
             p.is_static = true;
         })},
        {Finding::ProgramRaised, "process 42", with([](auto& p) {
             p.library = "";
             p.raised = true;
         })},
        {Finding::PreloadFileMissing, "LD_PRELOAD=", with([](auto& p) { p.library = ""; })},
        {Finding::PreloadLost, "process 17 (sh)", with([](auto& p) {
             p.library = "";
             p.preload.reset();
             p.parent = "process 17 (sh)";
             p.parent_preload = "/usr/lib/libnccl-net-deft.so";
         })},
        {Finding::LibraryReplaced, "removed or replaced",
         with([](auto& p) { p.library_deleted = true; })},
        {Finding::NcclByHandle, "past the preload", with([](auto& p) { p.hooks_active = false; })},
        {Finding::PluginOther, "libnccl-net-ofi.so", with([](auto& p) {
             p.plugin_active = false;
             p.other_plugins = {"/opt/libnccl-net-ofi.so"};
         })},
        {Finding::ProcessIdle, "no communicator",
         with([](auto& p) { p.hooks_active = p.plugin_active = p.communicates = false; })},
        {Finding::NcclSeveral, "2.18.5", with([](auto& p) {
             p.nccl.push_back({"/opt/libnccl.so.2", 21805, "", false, "map"});
         })},
    };
}

}  // namespace deft::tools::doctor
