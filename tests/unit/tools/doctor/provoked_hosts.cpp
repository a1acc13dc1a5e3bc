// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tools/doctor/provoked.h"

namespace deft::tools::doctor {

namespace {

void set_environment(Facts& facts, std::vector<const char*> environment) {
    facts.settings->config = settings(std::move(environment));
}

// One of DEFT_UCX=on that has this in its way.
std::function<void(Facts&)> ucx(discovery::Ucx::Obstacle obstacle, const char* problem) {
    return [=](Facts& f) {
        discovery::Ucx& found = f.ucx.emplace();
        found.asked = true;
        found.obstacle = obstacle;
        found.problem = problem;
        found.links = {{"eth0", "tcp", ""}, {"ib7", "", problem}};
    };
}

}  // namespace

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
        {Finding::LoopbackDown, "lo is down",
         [](Facts& f) {
             f.links->all.push_back(link("lo", "127.0.0.1"));
             f.links->all.back().loopback = true;
             f.links->all.back().up = false;
         }},
        {Finding::LinkRoute, "eth1: what 10.0.1.1 sends",
         [](Facts& f) {
             f.links->astray = {{"eth1", "what 10.0.1.1 sends leaves over eth0"}, {"eth7", "x"}};
         }},
        {Finding::LinkShaped, "eth1 has the rule tbf rate 1Gbit",
         [](Facts& f) {
             f.links->shaped = {{"eth1", "tbf rate 1Gbit"}, {"docker0", "netem"}};
         }},
        {Finding::LinkSameNetwork, "both have 10.0.0.1",
         [](Facts& f) { f.links->chosen.links[1] = link("eth1", "10.0.0.1"); }},
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
        {Finding::UcxUnprepared, "is not in the environment",
         ucx(discovery::Ucx::Obstacle::Unprepared, "UCX_X=none is not in the environment")},
        {Finding::UcxMissing, "no module", ucx(discovery::Ucx::Obstacle::NoModule, "no module")},
        {Finding::UcxMissing, "no libucp", ucx(discovery::Ucx::Obstacle::NoLibrary, "no libucp")},
        {Finding::UcxVersion, "another", ucx(discovery::Ucx::Obstacle::OtherBuild, "another")},
        {Finding::UcxBroken, "crashed", ucx(discovery::Ucx::Obstacle::NoAnswer, "crashed")},
        {Finding::UcxDevice, "DEFT_UCX_DEVICES names ib7: none",
         ucx(discovery::Ucx::Obstacle::NoDevice, "none")},
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
        {Finding::LimitAddressSpace, "ulimit -v is 1024 KiB",
         [](Facts& f) { f.host->address_space = 1 << 20; }},
        {Finding::LimitAddressSpace, "job.sh:3 sets ulimit -v",
         [](Facts& f) {
             f.command->limits = {{{"job.sh", 3, ""}, 'v', 500000}};
         }},
        {Finding::LimitFileSize, "ulimit -f is 1024 KiB",
         [](Facts& f) { f.host->file_size = 1 << 20; }},
        {Finding::LimitFileSize, "job.sh:3 sets ulimit -f",
         [](Facts& f) {
             f.command->limits = {{{"job.sh", 3, ""}, 'f', 2048}};
         }},
        {Finding::LimitThreads, "job.sh:3 sets ulimit -u to 100",
         [](Facts& f) {
             f.command->limits = {{{"job.sh", 3, ""}, 'u', 100}};
         }},
        {Finding::ProbeUnanswered, "/usr/sbin/nft gave no answer",
         [](Facts& f) { f.host->unanswered = {"/usr/sbin/nft"}; }},
        {Finding::PortRange, "100 ports",
         [](Facts& f) { f.host->port_high = f.host->port_low + 99; }},
        {Finding::PortRange, "ip_local_reserved_ports takes 28000",
         [](Facts& f) { f.host->ports_reserved = 28000; }},
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
        {Finding::ListenBacklog, "somaxconn is 16", [](Facts& f) { f.host->backlog = 16; }},
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
        {Finding::ShmSmall, "8192 MiB, of which 3 are free",
         [](Facts& f) { f.host->shm_free = 3 << 20; }},
        {Finding::ShmSmall, "takes no file of this user: x",
         [](Facts& f) { f.host->shm_problem = "x"; }},
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
        {Finding::GpusHidden, "CUDA_VISIBLE_DEVICES='none'",
         [](Facts& f) { f.host->gpu.visible = "none"; }},
        {Finding::GpusHidden, "CUDA_VISIBLE_DEVICES='8,0'",
         [](Facts& f) {
             f.host->gpu.visible = "8,0";
             f.host->gpu.count = 8;
         }},
        {Finding::GpusHidden, "CUDA_VISIBLE_DEVICES=''",
         [](Facts& f) { f.host->gpu.visible = ""; }},
        {Finding::GpusHidden, "NVIDIA_VISIBLE_DEVICES='void'",
         [](Facts& f) {
             f.host->gpu.container_gpus = "void";
             f.host->gpu.device_file = false;
         }},
        {Finding::GpusHidden, "NVIDIA_VISIBLE_DEVICES='none'",
         [](Facts& f) {
             f.command->container_client = true;
             f.command->hidden_gpus = "none";
         }},
        {Finding::GpuDriverMismatch, "535.104.05",
         [](Facts& f) { f.host->gpu.library_driver = "535.104.05"; }},
        {Finding::GpuDriverMismatch, "no libcuda.so.1", [](Facts& f) { f.host->gpu.library = ""; }},
    };
}

}  // namespace deft::tools::doctor
