// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tools/doctor/healthy_facts.h"

#include <gtest/gtest.h>

namespace deft::tools::doctor {

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
    host.gpu = {"550.54.14", "/usr/lib/libcuda.so.1", "550.54.14", 12000, std::nullopt, "", 8, "",
                true};
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

}  // namespace deft::tools::doctor
