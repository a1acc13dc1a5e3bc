// SPDX-License-Identifier: Apache-2.0
// Each finding of `deft doctor` from facts that are made up: it is found, it comes first, and
// without what provokes it nothing is found.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tools/doctor/judge.h"

namespace deft::tools::doctor {
namespace {

using testing::HasSubstr;

Config settings(std::vector<const char*> environment) {
    return Config::load(environment, "");
}

Interface link(const std::string& name, const std::string& address) {
    Interface made;
    made.name = name;
    made.index = static_cast<unsigned>(name.back());
    made.up = true;
    made.mtu = 1500;
    made.speed_mbps = made.nominal_mbps = 10000;
    Address parsed;
    EXPECT_TRUE(parse_address(address, parsed));
    parsed.prefix = 24;
    made.addresses = {parsed};
    return made;
}

// A job in which nothing is wrong.
Facts healthy() {
    Facts facts;
    CommandFacts& command = facts.command.emplace();
    command.words = {"./train"};
    ProgramFacts program;
    program.word = program.file = "./train";
    program.elf = true;
    program.c_library = "glibc";
    program.loader = "/lib64/ld-linux-x86-64.so.2";
    program.glibc = "2.36";
    command.programs = {program};
    PreloadFacts& preload = facts.preload.emplace();
    PreloadEntry ours;
    ours.name = ours.path = "/usr/lib/libnccl-net-deft.so";
    ours.from = "LD_PRELOAD";
    ours.library = true;
    ours.version = "1.0";
    preload.entries = {ours};
    preload.command_version = preload.library_version = "1.0";
    preload.library = ours.path;
    preload.glibc_needed = "2.28";
    facts.nccl.emplace().copies = {{"/usr/lib/libnccl.so.2", 22809, "12.4", false, "cache"}};
    facts.plugin.emplace().settings = {{"NCCL_NET_PLUGIN", {"deft", "environment"}}};
    facts.plugin->findable = true;
    facts.settings.emplace();
    LinkFacts& links = facts.links.emplace();
    links.all = {link("eth0", "10.0.0.1"), link("eth1", "10.0.1.1")};
    links.chosen.links = links.all;
    links.without_list = links.chosen;
    HostFacts& host = facts.host.emplace();
    host.kernel = "6.8";
    host.congestion_default = "cubic";
    host.rmem_max = host.wmem_max = 6291456;
    host.port_low = 32768;
    host.port_high = 60999;
    host.files = 65536;
    host.shm_bytes = std::int64_t{1} << 33;
    host.cpus = 64;
    host.clock_source = "tsc";
    host.gpu = {"550.54.14", "/usr/lib/libcuda.so.1", "550.54.14", 12000, std::nullopt, 8, ""};
    return facts;
}

ProcessFacts process() {
    ProcessFacts made;
    made.pid = 42;
    made.name = "python3";
    made.preload = "/usr/lib/libnccl-net-deft.so";
    made.library = "/usr/lib/libnccl-net-deft.so";
    made.nccl = {{"/usr/lib/libnccl.so.2", 22809, "", false, "map"}};
    made.hooks_active = made.plugin_active = made.communicates = true;
    return made;
}

ObserveFile record(std::int64_t rank) {
    ObserveFile made;
    made.path = "r" + std::to_string(rank) + ".json";
    made.host = "host" + std::to_string(rank);
    made.library_version = "1.0";
    made.nccl_version = 22809;
    made.mode = "exact";
    made.gradients = "proven";
    made.rank = rank;
    made.ranks = 2;
    made.calls = {{"ncclAllReduce", 10}};
    made.plugin_loaded = true;
    for (const char* name : {"eth0", "eth1"}) {
        ObservedLink carried;
        carried.name = name;
        carried.bytes_sent = carried.bytes_received = 1000;
        made.links.push_back(carried);
    }
    return made;
}

PeerFacts peer() {
    PeerFacts made;
    made.address = "10.0.0.2";
    made.host = "host2";
    made.version = "1.0";
    made.links = made.own_links = 1;
    made.own_settings = made.settings = {{"DEFT_MODE", "exact"}};
    made.ways = {{"eth0", "eth0 (10.0.0.2)", "", true, true}};
    return made;
}

RdmaPort rdma_port(const std::string& obstacle) {
    RdmaPort port;
    port.device = "mlx5_0";
    port.number = 1;
    port.state = "ACTIVE";
    port.obstacle = obstacle;
    return port;
}

struct Case {
    Finding finding;
    const char* says;  // in the finding
    std::function<void(Facts&)> provoke;
};

void set_environment(Facts& facts, std::vector<const char*> environment) {
    facts.settings->config = settings(std::move(environment));
}

void only_processes(Facts& facts, const ProcessFacts& one) {
    facts = Facts();
    facts.processes = {one};
}

void only_records(Facts& facts, std::vector<ObserveFile> ranks) {
    facts = Facts();
    facts.records.emplace().ranks = std::move(ranks);
}

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
        {Finding::PreloadLost, "job.sh:3: ssh hands",
         [](Facts& f) {
             f.command->loss = "ssh hands nothing; put deft behind it";
             f.command->loss_from = "job.sh:3";
         }},
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

std::vector<Case> nccl_cases() {
    return {
        {Finding::NcclLibUnusable, "/x",
         [](Facts& f) { f.nccl->override_problem = "DEFT_NCCL_LIB=/x: no"; }},
        {Finding::NcclMissing, "./train needs NCCL",
         [](Facts& f) {
             f.nccl->copies.clear();
             f.nccl->needed = true;
         }},
        {Finding::NcclUnknown, "no NCCL", [](Facts& f) { f.nccl->copies.clear(); }},
        {Finding::NcclTooOld, "2.12.7", [](Facts& f) { f.nccl->copies[0].version = 21207; }},
        {Finding::NcclTooOld, "2.8.4", [](Facts& f) { f.nccl->copies[0].version = 2804; }},
        {Finding::NcclTooNew, "2.31.0", [](Facts& f) { f.nccl->copies[0].version = 23100; }},
        {Finding::NcclStatic, "linked into", [](Facts& f) { f.nccl->copies[0].is_static = true; }},
        {Finding::NcclSeveral, "/opt/libnccl.so.2",
         [](Facts& f) {
             f.nccl->copies.push_back({"/opt/libnccl.so.2", 21805, "", false, "x"});
         }},
        {Finding::GpuDriverTooOld, "CUDA 13.0, and the driver supports CUDA 12.0",
         [](Facts& f) { f.nccl->copies[0].cuda = "13.0"; }},
        {Finding::PluginOther, "NCCL_NET_PLUGIN='ofi' (/etc/nccl.conf)",
         [](Facts& f) {
             f.plugin->settings["NCCL_NET_PLUGIN"] = {"ofi", "/etc/nccl.conf"};
         }},
        {Finding::PluginOther, "NCCL_NET_PLUGIN=''",
         [](Facts& f) {
             f.plugin->settings["NCCL_NET_PLUGIN"] = {"", "environment"};
         }},
        {Finding::PluginOrder, "ofi before deft",
         [](Facts& f) { f.plugin->settings["NCCL_NET_PLUGIN"].value = "ofi,deft"; }},
        {Finding::PluginFileMissing, "cannot be read",
         [](Facts& f) { f.plugin->named_path_exists = false; }},
        {Finding::PluginNotNamed, "NCCL_NET_PLUGIN is not set",
         [](Facts& f) { f.plugin->settings.clear(); }},
        {Finding::PluginNotFound, "finds no libnccl-net-deft.so",
         [](Facts& f) {
             f.preload->entries.clear();
             f.plugin->findable = false;
         }},
        {Finding::PreloadAbsent, "LD_PRELOAD has nothing",
         [](Facts& f) { f.preload->entries.clear(); }},
        {Finding::PluginVendor, "/opt/amazon/libnccl-net.so",
         [](Facts& f) {
             f.plugin->settings.clear();
             f.plugin->vendor = "/opt/amazon/libnccl-net.so";
             f.command->under_deft_run = true;
         }},
        {Finding::NetOther, "NCCL_NET='Socket' (job.sh:2)",
         [](Facts& f) {
             f.plugin->settings["NCCL_NET"] = {"Socket", "job.sh:2"};
         }},
        {Finding::RdmaDisplaced, "mlx5_0:1",
         [](Facts& f) {
             f.links->rdma.use = RdmaUse::Replace;
             f.links->rdma.ports = {rdma_port("")};
         }},
        {Finding::RdmaAside, "mlx5_0:1",
         [](Facts& f) {
             f.links->rdma.use = RdmaUse::Aside;
             f.links->rdma.ports = {rdma_port("")};
         }},
        {Finding::RdmaUndriven, "left out by NCCL_IB_HCA",
         [](Facts& f) { f.links->rdma.ports = {rdma_port("left out by NCCL_IB_HCA=x")}; }},
    };
}

std::vector<Case> settings_cases() {
    const auto with = [](std::vector<const char*> environment) {
        return [environment](Facts& f) { set_environment(f, environment); };
    };
    return {
        {Finding::SettingWrong, "DEFT_MODE", with({"DEFT_MODE=fast"})},
        {Finding::SettingWrong, "DEFT_OUT",
         [](Facts& f) { f.settings->unwritable = {"DEFT_OUT='/x/y' (environment): folder /x"}; }},
        {Finding::SettingWrong, "no interface",
         [](Facts& f) {
             f.settings->texts = {{Key::Interfaces, "no interface is named eth9"}};
         }},
        {Finding::SettingsFileWrong, "DEFT_MODE",
         [](Facts& f) {
             f.settings->config =
                 Config::load({}, DEFT_SOURCE_ROOT "/tests/unit/tools/doctor/wrong.conf");
         }},
        {Finding::SettingsLineIgnored, "DEFT_LOG='loud'",
         [](Facts& f) {
             f.settings->config =
                 Config::load({}, DEFT_SOURCE_ROOT "/tests/unit/tools/doctor/ignored.conf");
         }},
        {Finding::SettingOverruled, "DEFT_LOG=debug",
         [](Facts& f) {
             const std::array<const char*, 2> entries = {"DEFT_CONF=" DEFT_SOURCE_ROOT
                                                         "/tests/unit/tools/doctor/forced.conf",
                                                         "DEFT_LOG=debug"};
             f.settings->config = Config::load(entries, "");
         }},
        {Finding::SwitchedOff, "DEFT_MODE=off", with({"DEFT_MODE=off"})},
        {Finding::SwitchedOff, "DEFT_DISABLE=0", with({"DEFT_DISABLE=0"})},
        {Finding::SettingUnknown, "DEFT_MODES", with({"DEFT_MODES=exact"})},
        {Finding::SettingUnknown, "NCCL_SOCKET_IFNAMES",
         [](Facts& f) { f.settings->unknown = {"NCCL_SOCKET_IFNAMES is no known variable"}; }},
        {Finding::GradientsUnproven, "mode deft", with({"DEFT_MODE=deft"})},
        {Finding::SettingIdle, "DEFT_MAX_DELAY=2", with({"DEFT_MAX_DELAY=2"})},
        {Finding::SettingIdle, "NCCL_SOCKET_NTHREADS=4",
         [](Facts& f) {
             f.plugin->settings["NCCL_SOCKET_NTHREADS"] = {"4", "environment"};
         }},
        {Finding::SettingIdle, "DEFT_STREAMS=8 over 3 links",
         [](Facts& f) {
             set_environment(f, {"DEFT_STREAMS=8"});
             f.links->chosen.links.push_back(link("eth2", "10.0.2.1"));
             f.links->without_list = f.links->chosen;
         }},
        {Finding::SettingIdle, "NCCL_IB_DISABLE=1",
         [](Facts& f) {
             set_environment(f, {"DEFT_RDMA=replace"});
             f.plugin->settings["NCCL_IB_DISABLE"] = {"1", "environment"};
         }},
        {Finding::SettingIdle, "DEFT_METRICS='/x'",
         [](Facts& f) { f.settings->unusable = {"DEFT_METRICS='/x': No such file; make it"}; }},
        {Finding::SettingIdle, "next to NCCL_ALGO=Ring",
         [](Facts& f) {
             set_environment(f, {"DEFT_TUNER=auto"});
             f.settings->other["NCCL_ALGO"] = "Ring";
         }},
        {Finding::SettingIdle, "no network 'eth1'", with({"DEFT_LANES=IB,eth1"})},
        {Finding::SettingIdle, "next to DEFT_COMPANION=off",
         with({"DEFT_LAYERWISE=auto", "DEFT_COMPANION=off"})},
        {Finding::SettingIdle, "next to DEFT_MODE=observe",
         with({"DEFT_LAYERWISE=auto", "DEFT_MODE=observe"})},
        {Finding::SettingWrong, "deft run has no option --moed",
         [](Facts& f) { f.command->wrong_option = "--moed"; }},
        {Finding::KillSwitchPulled, "/etc/deft/off is there",
         [](Facts& f) { f.settings->kill_file = "/etc/deft/off"; }},
        {Finding::PortRange, "has 20 ports", with({"DEFT_PORTS=20000-20019"})},
        {Finding::PortRange, "MASTER_PORT=29500",
         [](Facts& f) {
             set_environment(f, {"DEFT_PORTS=29000-29999"});
             f.settings->other["MASTER_PORT"] = "29500";
         }},
        {Finding::SettingsContradict, "a second time",
         [](Facts& f) { f.settings->contradictions = {"f:2 sets DEFT_MODE a second time"}; }},
        {Finding::SettingsContradict, "is no plan of",
         with({"DEFT_MODE=covap", "DEFT_GRADIENTS=trust", "DEFT_PLAN=delay1"})},
        {Finding::SettingsContradict, "nothing to do",
         with({"DEFT_MODE=deft", "DEFT_GRADIENTS=trust", "DEFT_MAX_DELAY=0", "DEFT_MAX_MERGE=1"})},
        {Finding::SettingsContradict, "name different interfaces",
         [](Facts& f) {
             set_environment(f, {"DEFT_INTERFACES=eth0"});
             f.plugin->settings["NCCL_SOCKET_IFNAME"] = {"eth1", "environment"};
         }},
        {Finding::SettingsContradict, "forbids",
         [](Facts& f) {
             set_environment(f, {"DEFT_LANES=IB,Socket"});
             f.plugin->settings["NCCL_IB_DISABLE"] = {"1", "environment"};
         }},
        {Finding::SettingsContradict, "stays empty",
         with({"DEFT_LOG=none", "DEFT_LOG_FILE=/tmp/x.log"})},
        {Finding::LaunchBlocking, "CUDA_LAUNCH_BLOCKING=1",
         [](Facts& f) { f.settings->other["CUDA_LAUNCH_BLOCKING"] = "1"; }},
        {Finding::LaunchBlocking, "TORCH_DISTRIBUTED_DEBUG",
         [](Facts& f) { f.settings->other["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"; }},
        {Finding::CompanionOff, "-I",
         [](Facts& f) {
             f.command->python = true;
             f.command->python_ignores = "-I";
         }},
        {Finding::CompanionOff, "PYTHONPATH",
         [](Facts& f) {
             f.command->python = true;
             set_environment(f, {"DEFT_MODE=deft", "DEFT_GRADIENTS=trust"});
         }},
        {Finding::CompanionOff, "job.sh:3 sets PYTHONPATH",
         [](Facts& f) {
             f.command->python = f.command->under_deft_run = true;
             f.command->python_path_reset = {"job.sh", 3, "export PYTHONPATH=/x"};
         }},
        {Finding::CompanionOff, "the command sets PYTHONPATH",
         [](Facts& f) {
             f.command->python = f.command->under_deft_run = true;
             f.command->python_path_reset = {"the command", 0, "PYTHONPATH=/x"};
         }},
        {Finding::CompanionOff, "/opt/sitecustomize.py",
         [](Facts& f) {
             f.command->python = true;
             f.settings->shadowing_site = "/opt/sitecustomize.py";
         }},
    };
}

std::vector<Case> link_cases() {
    return {
        {Finding::LinksNone, "DEFT_INTERFACES",
         [](Facts& f) {
             f.links->chosen = {};
             f.links->chosen.problem = "DEFT_INTERFACES=x: no interface";
         }},
        {Finding::LinksLoopback, "loopback alone",
         [](Facts& f) {
             f.links->chosen.links = {link("lo", "127.0.0.1")};
             f.links->chosen.links[0].loopback = true;
             f.links->without_list = {};
             f.links->list = "NCCL_SOCKET_IFNAME=lo";
         }},
        {Finding::LinksOne, "eth0 is the only", [](Facts& f) { f.links->chosen.links.pop_back(); }},
        {Finding::LinkExcluded, "leaves out eth1",
         [](Facts& f) {
             f.links->chosen.links.pop_back();
             f.links->list = "NCCL_SOCKET_IFNAME=eth0";
         }},
        {Finding::LinkInternal, "takes docker0: leads nowhere",
         [](Facts& f) {
             f.links->chosen.links.push_back(link("docker0", "172.17.0.1"));
             f.links->without_list.skipped = {{"docker0", "leads nowhere"}};
             f.links->list = "DEFT_INTERFACES=eth,docker";
         }},
        {Finding::LinkNoAddress, "eth2 has a carrier and no address",
         [](Facts& f) {
             f.links->all.push_back(link("eth2", "10.0.2.1"));
             f.links->all.back().addresses.clear();
             f.links->all.back().hardware = "020000000001";
         }},
        {Finding::LinkDown, "eth1 has no carrier",
         [](Facts& f) { f.links->chosen.links[1].up = false; }},
        {Finding::LinkSlow, "eth1 runs at 1000",
         [](Facts& f) { f.links->chosen.links[1].speed_mbps = 1000; }},
        {Finding::LinkSpeedUnknown, "eth1",
         [](Facts& f) {
             f.links->chosen.links[1].speed_mbps = f.links->chosen.links[1].nominal_mbps = 0;
         }},
        {Finding::LinkMtu, "eth1 has an MTU of 600",
         [](Facts& f) { f.links->chosen.links[1].mtu = 600; }},
        {Finding::LinkMtu, "eth0 below it one of 1500",
         [](Facts& f) {
             f.links->chosen.links[1].mtu = 9000;
             f.links->chosen.links[1].lower = "eth0";
         }},
        {Finding::LinkSameNetwork, "eth0 and eth1",
         [](Facts& f) {
             f.links->chosen.links[1] = link("eth1", "10.0.0.9");
             f.links->reverse_path = {{"eth1", 1}};
         }},
        {Finding::LinkSkipped, "eth2 is not used: tunnel",
         [](Facts& f) {
             f.links->chosen.skipped = {{"eth2", "tunnel"}};
         }},
    };
}

std::vector<Case> host_cases() {
    return {
        {Finding::Firewall, "policy drop",
         [](Facts& f) { f.host->firewall = {"chain input: policy drop"}; }},
        {Finding::ProbeUnanswered, "/usr/sbin/nft gave no answer",
         [](Facts& f) { f.host->unanswered = {"/usr/sbin/nft"}; }},
        {Finding::PortRange, "100 ports",
         [](Facts& f) { f.host->port_high = f.host->port_low + 99; }},
        {Finding::CongestionMissing, "DEFT_TCP_CONGESTION=vegas",
         [](Facts& f) {
             set_environment(f, {"DEFT_TCP_CONGESTION=vegas"});
             f.host->congestion_wanted_error = "this kernel does not have it";
         }},
        {Finding::CongestionBbr, "bbr",
         [](Facts& f) {
             f.host->congestion_default = "bbr";
             f.host->cubic_allowed = false;
         }},
        {Finding::TcpBuffers, "tcp_wmem", [](Facts& f) { f.host->wmem_max = 65536; }},
        {Finding::TcpBuffers, "tcp_rmem", [](Facts& f) { f.host->rmem_max = 65536; }},
        {Finding::TcpFeatures, "tcp_window_scaling",
         [](Facts& f) { f.host->window_scaling = false; }},
        {Finding::TcpFeatures, "tcp_sack", [](Facts& f) { f.host->selective_acks = false; }},
        {Finding::TcpRetries, "tcp_retries2 is 3", [](Facts& f) { f.host->retries = 3; }},
        {Finding::ZerocopyRefused, "vmsplice",
         [](Facts& f) {
             f.host->takes_many_pages = false;
             f.host->zerocopy_refused = "vmsplice: Operation not permitted";
         }},
        {Finding::ZerocopyOld, "DEFT_TCP_ZEROCOPY=on",
         [](Facts& f) {
             f.host->takes_many_pages = false;
             set_environment(f, {"DEFT_TCP_ZEROCOPY=on"});
         }},
        {Finding::KernelOld, "page by page", [](Facts& f) { f.host->takes_many_pages = false; }},
        {Finding::LimitFiles, "ulimit -n is 128", [](Facts& f) { f.host->files = 128; }},
        {Finding::LimitMemlock, "64 KiB",
         [](Facts& f) {
             f.host->memlock = 65536;
             f.links->rdma.use = RdmaUse::Aside;
             f.links->rdma.ports = {rdma_port("")};
         }},
        {Finding::LimitThreads, "100 tasks", [](Facts& f) { f.host->threads = 100; }},
        {Finding::ShmSmall, "64 MiB", [](Facts& f) { f.host->shm_bytes = 64 << 20; }},
        {Finding::ThreadsExceedCpus, "DEFT_IO_THREADS=8",
         [](Facts& f) {
             set_environment(f, {"DEFT_IO_THREADS=8"});
             f.host->cpus = 4;
         }},
        {Finding::ClockSource, "hpet", [](Facts& f) { f.host->clock_source = "hpet"; }},
        {Finding::ClockUnsynchronised, "not synchronised",
         [](Facts& f) { f.host->clock_synchronised = false; }},
        {Finding::GpuNone, "no NVIDIA driver", [](Facts& f) { f.host->gpu = {}; }},
        {Finding::GpuUnseen, "8 NVIDIA GPUs are there: NVML: Driver/library version mismatch",
         [](Facts& f) { f.host->gpu.nvml_problem = "NVML: Driver/library version mismatch"; }},
        {Finding::GpusHidden, "CUDA_VISIBLE_DEVICES=''",
         [](Facts& f) { f.host->gpu.visible = ""; }},
        {Finding::GpuDriverMismatch, "535.104.05",
         [](Facts& f) { f.host->gpu.library_driver = "535.104.05"; }},
        {Finding::GpuDriverMismatch, "no libcuda.so.1", [](Facts& f) { f.host->gpu.library = ""; }},
    };
}

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

std::vector<Case> all_cases() {
    std::vector<Case> all;
    for (const auto& part : {program_cases(), process_cases(), nccl_cases(), settings_cases(),
                             link_cases(), host_cases(), peer_cases(), record_cases()}) {
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

TEST(Findings, NothingIsFoundInAHealthyJob) {
    const Diagnoses found = judge(healthy());
    EXPECT_TRUE(found.empty()) << found.front().what;
    Facts running;
    running.processes = {process()};
    EXPECT_TRUE(judge(running).empty());
    Facts recorded;
    recorded.records.emplace().ranks = {record(0), record(1)};
    EXPECT_TRUE(judge(recorded).empty());
    Facts reached = healthy();
    reached.peer = peer();
    EXPECT_TRUE(judge(reached).empty());
    EXPECT_TRUE(judge(Facts()).empty());
}

TEST(Findings, EachComesFirstWhereItIsProvoked) {
    for (const Case& each : all_cases()) {
        Facts facts = healthy();
        each.provoke(facts);
        const Diagnoses found = judge(facts);
        ASSERT_FALSE(found.empty()) << kind_of(each.finding).name;
        EXPECT_EQ(found.front().finding, each.finding)
            << kind_of(each.finding).name << " comes behind " << found.front().what;
        EXPECT_THAT(found.front().what, HasSubstr(each.says));
    }
}

TEST(Findings, EachIsProvoked) {
    std::set<Finding> provoked;
    for (const Case& each : all_cases()) {
        provoked.insert(each.finding);
    }
    for (const FindingKind& kind : finding_kinds()) {
        EXPECT_TRUE(provoked.contains(kind.finding)) << kind.name;
    }
}

TEST(Findings, TableIsInOrderAndComplete) {
    std::set<std::string> names;
    Severity worst = Severity::Error;
    for (const FindingKind& kind : finding_kinds()) {
        EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
        EXPECT_EQ(&kind, &kind_of(kind.finding));
        EXPECT_GE(kind.severity, worst) << kind.name << " stands below one that is less severe";
        worst = kind.severity;
        EXPECT_TRUE(std::string(kind.meaning).ends_with('.')) << kind.name;
        EXPECT_FALSE(std::string(kind.remedy).ends_with('.')) << kind.name;
    }
    EXPECT_GE(names.size(), 80U);
}

TEST(Findings, TheWorstDecidesTheExitCode) {
    EXPECT_EQ(exit_code({}), 0);
    EXPECT_EQ(exit_code({{Finding::GpuNone, "", "", ""}}), 0);
    EXPECT_EQ(exit_code({{Finding::GpuNone, "", "", ""}, {Finding::LinkDown, "", "", ""}}), 1);
    EXPECT_EQ(exit_code({{Finding::LinkDown, "", "", ""}, {Finding::NetOther, "", "", ""}}), 3);
}

TEST(Findings, TheGuestLoadsIntoEveryProgram) {
    Facts facts = healthy();
    facts.preload->entries[0].library = false;
    facts.preload->entries[0].guest = true;
    facts.command->programs[0].c_library = "musl";
    EXPECT_TRUE(judge(facts).empty());
    facts.command->programs[0].c_library = "glibc";
    facts.command->programs[0].glibc = "2.17";
    EXPECT_TRUE(judge(facts).empty());
}

TEST(Findings, AFleetsDefaultsForOtherModesAreNoFault) {
    Facts facts = healthy();
    facts.settings->config =
        Config::load({}, DEFT_SOURCE_ROOT "/tests/unit/tools/doctor/fleet.conf");
    EXPECT_TRUE(judge(facts).empty());
}

TEST(Findings, OfLauncherAndWorkersThoseCountThatHaveNccl) {
    Facts facts;
    ProcessFacts launcher = process();
    launcher.nccl.clear();
    launcher.library = "";
    facts.processes = {launcher, process()};
    EXPECT_TRUE(judge(facts).empty());
    facts.processes = {launcher};
    EXPECT_FALSE(judge(facts).empty());
}

TEST(Findings, EqualCopiesAreNoContradiction) {
    Facts facts = healthy();
    facts.nccl->copies.push_back({"/opt/libnccl.so.2", 22809, "", false, "x"});
    EXPECT_TRUE(judge(facts).empty());
}

}  // namespace
}  // namespace deft::tools::doctor
