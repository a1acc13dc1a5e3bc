// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tools/doctor/provoked.h"

namespace deft::tools::doctor {

namespace {

void set_environment(Facts& facts, std::vector<const char*> environment) {
    facts.settings->config = settings(std::move(environment));
}

}  // namespace

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
        {Finding::SettingIdle, "no effect without DEFT_UCX=on", with({"DEFT_UCX_DEVICES=eth0"})},
        {Finding::SettingIdle, "no network 'eth1'", with({"DEFT_LANES=IB,eth1"})},
        {Finding::SettingIdle, "next to DEFT_COMPANION=off",
         with({"DEFT_LAYERWISE=auto", "DEFT_COMPANION=off"})},
        {Finding::SettingIdle, "next to DEFT_MODE=observe",
         with({"DEFT_LAYERWISE=auto", "DEFT_MODE=observe"})},
        {Finding::SettingWrong, "deft run has no option --moed",
         [](Facts& f) { f.command->wrong_option = "--moed"; }},
        {Finding::AuditSet, "LD_AUDIT='/opt/audit.so'",
         [](Facts& f) { f.settings->other["LD_AUDIT"] = "/opt/audit.so"; }},
        {Finding::AuditSet, "names deft, which is preloaded by LD_PRELOAD",
         [](Facts& f) { f.settings->other["LD_AUDIT"] = "/usr/lib/libnccl-net-deft.so"; }},
        {Finding::RendezvousLonely, "MASTER_ADDR=127.0.0.1: each host finds itself there",
         [](Facts& f) {
             f.settings->other = {
                 {"MASTER_ADDR", "127.0.0.1"}, {"WORLD_SIZE", "16"}, {"LOCAL_WORLD_SIZE", "8"}};
         }},
        {Finding::RendezvousLonely, "/etc/hosts has 127.0.1.1 for this host's name",
         [](Facts& f) {
             f.settings->other = {{"MASTER_ADDR", "$(hostname -i)"}, {"SLURM_JOB_NUM_NODES", "2"}};
             f.command->srun = true;
             f.host->own_name_at = "127.0.1.1";
         }},
        {Finding::RendezvousLonely, "rank 0 listens there alone",
         [](Facts& f) {
             f.settings->other = {{"NCCL_COMM_ID", "node1:29400"}, {"SLURM_STEP_NUM_NODES", "2"}};
             f.host->name = "node1";
             f.host->own_name_at = "127.0.1.1";
         }},
        {Finding::SettingsFileUnread, "/etc/deft.conf is there",
         [](Facts& f) { f.settings->unread_files = {"/etc/deft.conf"}; }},
        {Finding::HostId, "NCCL_HOSTID='all'",
         [](Facts& f) {
             f.plugin->settings["NCCL_HOSTID"] = {"all", "environment"};
         }},
        {Finding::KillSwitchPulled, "/etc/deft/off is there",
         [](Facts& f) { f.settings->kill_file = "/etc/deft/off"; }},
        {Finding::PortRange, "has 20 ports", with({"DEFT_PORTS=20000-20019"})},
        {Finding::PortRange, "has 100 ports, of which 7 are free",
         [](Facts& f) {
             set_environment(f, {"DEFT_PORTS=42000-42099"});
             f.settings->free_ports = 7;
         }},
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

}  // namespace deft::tools::doctor
