// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tools/doctor/provoked.h"

namespace deft::tools::doctor {

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
        {Finding::NcclNoShm, "NCCL_SHM_DISABLE=1: ranks of one host that cannot use P2P",
         [](Facts& f) {
             f.plugin->settings["NCCL_SHM_DISABLE"] = {"1", "/etc/nccl.conf"};
         }},
        {Finding::NcclDetour, "NCCL_P2P_LEVEL=LOC: all that ranks of one host say",
         [](Facts& f) {
             f.plugin->settings["NCCL_SHM_DISABLE"] = {"1", "environment"};
             f.plugin->settings["NCCL_P2P_LEVEL"] = {"LOC", "environment"};
         }},
        {Finding::NcclNoPeers, "NCCL_P2P_DISABLE=1",
         [](Facts& f) {
             f.plugin->settings["NCCL_P2P_DISABLE"] = {"1", "environment"};
         }},
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

}  // namespace deft::tools::doctor
