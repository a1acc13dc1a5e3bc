// SPDX-License-Identifier: Apache-2.0
// Machines of files and of sysfs trees, and what is said of broken files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/topo_command.h"
#include "topology/discovery/host_links.h"
#include "topology/discovery/xml.h"

namespace deft::tools {

using namespace discovery;

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Folder {
public:
    Folder() {
        std::string name = ::testing::TempDir() + "deft-topo-XXXXXX";
        path_ = mkdtemp(name.data());
    }
    ~Folder() { fs::remove_all(path_); }
    fs::path write(const std::string& name, const std::string& text) const {
        fs::create_directories((path_ / name).parent_path());
        std::ofstream(path_ / name) << text;
        return path_ / name;
    }
    const fs::path& path() const { return path_; }

private:
    fs::path path_;
};

Machine read(const fs::path& file, std::size_t host = 1) {
    Machine machine;
    std::string problem;
    EXPECT_TRUE(read_machine_file(file, host, machine, problem)) << problem;
    return machine;
}

std::string problem_of(const std::string& text) {
    const Folder folder;
    Machine machine;
    std::string problem;
    EXPECT_FALSE(read_machine_file(folder.write("x.xml", text), 1, machine, problem));
    EXPECT_EQ(problem.find('\n'), std::string::npos) << problem;
    EXPECT_THAT(problem, HasSubstr("x.xml: "));
    return problem;
}

const Nic& nic(const Machine& machine, std::string_view name) {
    for (const Nic& each : machine.nics) {
        if (each.name == name) {
            return each;
        }
    }
    ADD_FAILURE() << "no NIC " << name;
    return machine.nics.at(0);
}

constexpr const char* kNccl = R"(<system version="1">
  <!-- ours -->
  <cpu numaid="0" arch="x86_64">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80"/>
      </pci>
      <pci busid="0000:12:00.0" class="0x020000" link_speed="16 GT/s" link_width="8">
        <nic><net name="mlx5_0" dev="0" speed="100000" port="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:20:00.0" class="0x030000" link_speed="8 GT/s" link_width="16"/>
    <pci busid="0000:21:00.0" class="0x010802"/>
    <nic><net name="deft" dev="1" speed="1000"/></nic>
  </cpu>
</system>
)";

TEST(Topo, NcclFile) {
    const Folder folder;
    const Machine machine = read(folder.write("a.xml", kNccl));
    EXPECT_THAT(machine.numa_nodes, ElementsAre(0, 1));
    ASSERT_EQ(machine.gpus.size(), 2U);
    ASSERT_EQ(machine.nics.size(), 2U);
    EXPECT_NEAR(machine.gpus[0].pci_gbytes, 31.5, 0.1);
    const Nic& card = nic(machine, "mlx5_0");
    EXPECT_EQ(card.speed_mbps, 100000);
    EXPECT_EQ(distance(machine.gpus[0].pci, card.pci), Distance::Pix);
    EXPECT_EQ(distance(machine.gpus[1].pci, card.pci), Distance::Sys);
    EXPECT_EQ(nic(machine, "deft").kind, "virtual");
}

TEST(Topo, BrokenFilesGetOneLineThatSaysWhere) {
    EXPECT_THAT(problem_of(""), HasSubstr("empty"));
    EXPECT_THAT(problem_of("GIF89a"), HasSubstr("line 1: this is not XML"));
    EXPECT_THAT(problem_of("<system>\n<cpu>\n</system>"),
                HasSubstr("line 3: <cpu> of line 2 is closed by </system>"));
    EXPECT_THAT(problem_of("<system>\n<cpu numaid=\"0\">"),
                HasSubstr("<cpu> of line 2 is not closed"));
    EXPECT_THAT(problem_of("<system><cpu numaid=0/></system>"), HasSubstr("not quoted"));
    EXPECT_THAT(problem_of("<system version=\"1"), HasSubstr("not closed"));
    EXPECT_THAT(problem_of("<!-- a"), HasSubstr("comment is not closed"));
    EXPECT_THAT(problem_of("<system/><system/>"), HasSubstr("follows"));
    EXPECT_THAT(problem_of("<system/>"), HasSubstr("no <cpu>"));
    EXPECT_THAT(problem_of("<system><cpu><pci class=\"0x020000\"/></cpu></system>"),
                HasSubstr("no busid"));
    EXPECT_THAT(problem_of("<html></html>"), HasSubstr("<html>"));
    EXPECT_THAT(problem_of("<topology version=\"2.0\"></topology>"), HasSubstr("hwloc"));
    std::string deep;
    for (int i = 0; i < 100000; ++i) {
        deep += "<a>";
    }
    EXPECT_THAT(problem_of(deep), HasSubstr("deep"));
    Machine machine;
    std::string problem;
    EXPECT_FALSE(read_machine_file("/no/such/file.xml", 1, machine, problem));
    EXPECT_THAT(problem, HasSubstr("No such file"));
}

TEST(Topo, EveryCutOfAFileIsRefused) {
    const std::string whole = kNccl;
    const std::size_t last = whole.rfind("</system>") + std::string("</system>").size();
    for (std::size_t length = 0; length < last; length += 3) {
        XmlElement root;
        std::string problem;
        EXPECT_FALSE(parse_xml(whole.substr(0, length), root, problem)) << length;
        EXPECT_NE(problem, "");
    }
}

constexpr const char* kHwloc = R"(<?xml version="1.0" encoding="UTF-8"?>
<!-- written for this test -->
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" allowed_cpuset="0x00000003" nodeset="0x00000001" complete_nodeset="0x00000001" allowed_nodeset="0x00000001" gp_index="1">
    <object type="NUMANode" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="2" local_memory="1000"/>
    <object type="Bridge" gp_index="3" bridge_type="0-1" depth="0" bridge_pci="0000:[00-03]">
      <object type="PCIDev" gp_index="4" pci_busid="0000:00:05.0" pci_type="0200 [8086:1572] [8086:0000] 01" pci_link_speed="7.876923">
        <info name="PCIDevice" value="Ethernet &amp; more"/>
        <object type="OSDev" gp_index="5" name="eth7" osdev_type="2"/>
      </object>
      <object type="PCIDev" gp_index="6" pci_busid="0000:00:06.0" pci_type="0302 [10de:20b0] [10de:134f] a1" pci_link_speed="31.507692"/>
      <object type="PCIDev" gp_index="7" pci_busid="0000:00:07.0" pci_type="0200 [1d0f:efa0] [1d0f:efa0] 00" pci_link_speed="0.000000">
        <object type="OSDev" gp_index="8" name="rdma7" osdev_type="3"/>
      </object>
    </object>
  </object>
</topology>
)";

// The same machine as releases 1 and 3 of hwloc write it.
std::string of_release(int release) {
    std::string text = kHwloc;
    const auto replace = [&](const std::string& from, const std::string& to) {
        for (auto at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
            text.replace(at, from.size(), to);
        }
    };
    if (release == 1) {
        replace("<topology version=\"2.0\">", "<topology>");
    } else if (release == 3) {
        replace("version=\"2.0\"", "version=\"3.0\"");
        replace("osdev_type=\"2\"", "osdev_type=\"16\"");
        replace("osdev_type=\"3\"", "osdev_type=\"48\"");
        replace("pci_busid=\"0000:", "pci_busid=\"00000000:");
    }
    return text;
}

class HwlocFile : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Topo, HwlocFile, ::testing::Values(1, 2, 3));

TEST_P(HwlocFile, IsRead) {
    const Folder folder;
    const Machine machine = read(folder.write("h.xml", of_release(GetParam())));
    EXPECT_THAT(machine.numa_nodes, ElementsAre(0));
    EXPECT_EQ(machine.gpus.at(0).pci.address, "0000:00:06.0");
    EXPECT_EQ(machine.gpus[0].pci.numa_node, 0);
    EXPECT_NEAR(machine.gpus[0].pci_gbytes, 31.5, 0.1);
    EXPECT_EQ(nic(machine, "rdma7").rdma, "rdma7");
    EXPECT_FALSE(nic(machine, "rdma7").has_interface);
    ASSERT_EQ(machine.gpus.size(), 1U);
    const Nic& card = nic(machine, "eth7");
    EXPECT_EQ(card.model, "Ethernet & more");
    EXPECT_EQ(card.link, "tcp");
    EXPECT_EQ(distance(machine.gpus[0].pci, card.pci), Distance::Phb);
    EXPECT_EQ(nic(machine, "rdma7").link, "");
    EXPECT_THAT(nic(machine, "rdma7").reason, HasSubstr("EFA"));
    EXPECT_THAT(topo_text(machine), HasSubstr("eth7"));
}

// A card of two kinds of ports, of which the kernel says class 0c06.
TEST(Topo, InfiniBandOnTheSerialBusClass) {
    std::string text = kHwloc;
    text.replace(text.find("0200 [8086:1572]"), 4, "0c06");
    const Folder folder;
    const Machine machine = read(folder.write("v.xml", text));
    EXPECT_EQ(nic(machine, "eth7").kind, "infiniband");
    EXPECT_EQ(nic(machine, "eth7").link, "tcp");
}

// A dump of a job that used NCCL's Socket transport names interfaces.
TEST(Topo, NcclFileOfTheSocketTransport) {
    const std::string text =
        "\xef\xbb\xbf<system version=\"1\"><cpu numaid=\"0\">"
        "<pci busid=\"0000:16:00.0\" class=\"0x020000\" vendor=\"0x8086\" device=\"0x159b\"><nic>"
        "<net name=\"eth0\" dev=\"0\" speed=\"25000\" port=\"0\" guid=\"0x0\" maxconn=\"65536\"/>"
        "</nic></pci><nic><net name=\"deft\" dev=\"0\" speed=\"25000\" port=\"0\"/>"
        "<net name=\"mlx5_0\" dev=\"0\" speed=\"100000\" port=\"1\"/></nic></cpu></system>";
    const Folder folder;
    const Machine machine = read(folder.write("n.xml", text));
    EXPECT_EQ(nic(machine, "eth0").link, "tcp");
    EXPECT_EQ(nic(machine, "eth0").rdma, "");
    EXPECT_EQ(nic(machine, "mlx5_0").rdma, "mlx5_0");
    EXPECT_EQ(nic(machine, "mlx5_0").link, "");
    EXPECT_EQ(nic(machine, "deft").link, "");
    ASSERT_EQ(machine.devices.size(), 1U);
    EXPECT_EQ(machine.devices[0].speed_mbps, 25000);
}

// What NCCL dumps of an NVLink domain: all its hosts, each with a NUMA node 0.
TEST(Topo, NcclFileOfSeveralHosts) {
    const auto cpu = [](const char* host, const char* numa, const char* bus) {
        return std::string("<cpu host_hash=\"") + host + "\" numaid=\"" + numa +
               "\"><pci busid=\"0000:" + bus +
               ":00.0\" class=\"0x030200\"><gpu dev=\"0\"/></pci></cpu>";
    };
    const Folder folder;
    const fs::path file = folder.write("n.xml", "<system version=\"1\">" + cpu("0xa", "0", "10") +
                                                    cpu("0xb", "0", "20") + cpu("0xa", "1", "11") +
                                                    cpu("0xc", "0", "30") + "</system>");
    const Machine first = read(file);
    EXPECT_EQ(first.hosts, 3U);
    EXPECT_THAT(first.numa_nodes, ElementsAre(0, 1));
    EXPECT_EQ(first.gpus.size(), 2U);
    EXPECT_THAT(topo_text(first), HasSubstr("host 1 of the 3"));
    const Machine second = read(file, 2);
    ASSERT_EQ(second.gpus.size(), 1U);
    EXPECT_EQ(second.gpus[0].pci.address, "0000:20:00.0");
    Machine none;
    std::string problem;
    EXPECT_FALSE(read_machine_file(file, 4, none, problem));
    EXPECT_THAT(problem, HasSubstr("no host 4, the file holds 3"));
}

TEST(Topo, WhatIsNoFileIsRefusedAtOnce) {
    const Folder folder;
    const fs::path pipe = folder.path() / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const fs::path huge = folder.write("huge", "");
    fs::resize_file(huge, std::uintmax_t{3} << 30);
    for (const auto& [path, says] : {std::pair<fs::path, const char*>{pipe, "empty"},
                                     {"/dev/zero", "neither a file nor a pipe"},
                                     {folder.path(), "a folder"},
                                     {huge, "larger than 64 MiB"},
                                     {"/nonexistent/x", "No such file"}}) {
        Machine machine;
        std::string problem;
        EXPECT_FALSE(read_machine_file(path, 1, machine, problem)) << path;
        EXPECT_THAT(problem, HasSubstr(says));
    }
}

// A small sysfs: two host bridges, a GPU and a NIC with RDMA below one switch, a virtio NIC.
void make_sysfs(const Folder& root) {
    const std::string sw = "devices/pci0000:10/0000:10:00.0/0000:11:00.0/";
    const std::string gpu = sw + "0000:12:00.0/0000:13:00.0/";
    const std::string card = sw + "0000:12:01.0/0000:14:00.0/";
    const std::string cloud = "devices/pci0000:80/0000:80:03.0/";
    root.write(gpu + "class", "0x030200\n");
    root.write(gpu + "vendor", "0x10de\n");
    root.write(gpu + "device", "0x2330\n");
    root.write(gpu + "numa_node", "0\n");
    root.write(gpu + "current_link_speed", "32.0 GT/s PCIe\n");
    root.write(gpu + "current_link_width", "16\n");
    root.write(card + "class", "0x020700\n");
    root.write(card + "vendor", "0x15b3\n");
    root.write(card + "device", "0x1021\n");
    root.write(card + "numa_node", "0\n");
    root.write(card + "net/ib0/speed", "-1\n");
    root.write(card + "infiniband/mlx5_3/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    root.write(cloud + "class", "0x020000\n");
    root.write(cloud + "vendor", "0x1af4\n");
    root.write(cloud + "device", "0x1041\n");
    root.write(cloud + "numa_node", "1\n");
    root.write(cloud + "virtio0/net/eth0/speed", "-1\n");
    root.write("devices/system/node/node0/cpulist", "0\n");
    root.write("devices/system/node/node1/cpulist", "1\n");
    fs::create_directories(root.path() / "bus/pci/devices");
    for (const std::string& device : {gpu, card, cloud}) {
        const fs::path target = root.path() / device.substr(0, device.size() - 1);
        fs::create_directory_symlink(target, root.path() / "bus/pci/devices" / target.filename());
    }
}

TEST(Topo, SysfsTree) {
    const Folder root;
    make_sysfs(root);
    Machine machine;
    read_sysfs_machine(root.path(), machine);
    EXPECT_THAT(machine.numa_nodes, ElementsAre(0, 1));
    ASSERT_EQ(machine.gpus.size(), 1U);
    EXPECT_NEAR(machine.gpus[0].pci_gbytes, 63, 0.1);
    const Nic& ib = nic(machine, "ib0");
    EXPECT_EQ(ib.rdma, "mlx5_3");
    EXPECT_EQ(ib.kind, "infiniband");
    EXPECT_EQ(ib.speed_mbps, 400000);
    EXPECT_EQ(distance(machine.gpus[0].pci, ib.pci), Distance::Pix);
    const Nic& cloud = nic(machine, "eth0");
    EXPECT_EQ(cloud.pci.address, "0000:80:03.0");
    EXPECT_EQ(distance(machine.gpus[0].pci, cloud.pci), Distance::Sys);
    EXPECT_EQ(machine.nics.size(), 2U);

    const std::vector<PciPlace> gpus = list_gpu_places(root.path());
    ASSERT_EQ(gpus.size(), 1U);
    EXPECT_EQ(gpus[0].address, "0000:13:00.0");
}

TEST(Topo, InterfacesAndTheirReasonsAreMerged) {
    const Folder root;
    make_sysfs(root);
    Machine machine;
    read_sysfs_machine(root.path(), machine);
    Interface ib;
    ib.name = "ib0";
    ib.index = 3;
    ib.up = true;
    ib.speed_mbps = 400000;
    Address address;
    ASSERT_TRUE(parse_address("10.0.0.1", address));
    ib.addresses = {address};
    Interface lo = ib;
    lo.name = "lo";
    lo.loopback = true;
    const std::vector<Interface> all = {lo, ib};
    add_interfaces(all, select_interfaces(all, "", "V", true), machine);
    add_devices(machine);
    EXPECT_EQ(nic(machine, "ib0").link, "tcp");
    EXPECT_EQ(nic(machine, "lo").reason, "loopback");
    EXPECT_EQ(nic(machine, "eth0").reason, "not in this network namespace");
    ASSERT_EQ(machine.devices.size(), 1U);
    EXPECT_EQ(machine.devices[0].name, "deft");
    EXPECT_EQ(machine.devices[0].speed_mbps, 400000);

    const nlohmann::json json = nlohmann::json::parse(topo_json(machine));
    EXPECT_EQ(json["format"], "deft-topo");
    EXPECT_EQ(json["gpus"][0]["distances"]["ib0"], "PIX");
    EXPECT_EQ(json["nics"].size(), machine.nics.size());
}

TEST(Topo, SaysWhatNobodySaysAndWhatToDo) {
    Machine machine;
    machine.numa_nodes = {0};
    EXPECT_THAT(topo_text(machine), HasSubstr("NUMA: 1 node (0)\n"));
    machine.numa_nodes = {0, 1};
    EXPECT_THAT(topo_text(machine), HasSubstr("NUMA: 2 nodes (0, 1)\n"));
    for (const char* name : {"ens5", "ens6", "ens7"}) {
        Nic& each = machine.nics.emplace_back();
        each.name = name;
        each.link = "tcp";
    }
    machine.nics[2].nominal_mbps = 25000;
    add_devices(machine);
    EXPECT_EQ(machine.devices[0].speed_mbps, 45000);  // as the plugin tells NCCL
    EXPECT_THAT(topo_text(machine),
                HasSubstr("ens5 ens6: no driver says the speed, NCCL is told 10G"));
    EXPECT_THAT(topo_text(machine), HasSubstr("DEFT_INTERFACES=ens5@25gbit,ens6@25gbit"));
    machine.nics[0].nominal_mbps = machine.nics[1].nominal_mbps = 10000;
    EXPECT_THAT(topo_text(machine), Not(HasSubstr("no driver says")));
    // Two VLANs of one card.
    machine.nics[0].wire = machine.nics[1].wire = "bond0";
    machine.devices.clear();
    add_devices(machine);
    EXPECT_EQ(machine.devices[0].speed_mbps, 35000);
}

// A file tells names and speeds, which the rules for a live host go by.
TEST(Topo, ManagementInAFileIsNotUsed) {
    Machine machine;
    const std::pair<const char*, std::int64_t> given[] = {
        {"eth0", 100000}, {"eth1", 1000}, {"idrac", 0}, {"docker0", 0}, {"lo", 0}};
    for (const auto& [name, speed] : given) {
        Nic& each = machine.nics.emplace_back();
        each.name = name;
        each.has_interface = true;
        each.kind = "ethernet";
        each.speed_mbps = speed;
    }
    judge_by_hardware(machine);
    EXPECT_EQ(nic(machine, "eth0").link, "tcp");
    EXPECT_THAT(nic(machine, "eth1").reason, HasSubstr("management"));
    EXPECT_THAT(nic(machine, "idrac").reason, HasSubstr("management"));
    EXPECT_THAT(nic(machine, "docker0").reason, HasSubstr("bridge"));
    EXPECT_EQ(nic(machine, "lo").reason, "loopback");
}

// Captured machines, where they are at hand.
struct Captured {
    const char* file;
    std::size_t gpus, nics, used, devices;  // used: by deft's TCP links
    Distance nearest;                       // of GPU0 to such a link
};

void PrintTo(const Captured& captured, std::ostream* out) {
    *out << captured.file;
}

class CapturedMachine : public ::testing::TestWithParam<Captured> {};

TEST_P(CapturedMachine, IsRead) {
    const char* set = std::getenv("DEFT_TOPOLOGY_DATA");
    fs::path folder = set != nullptr ? fs::path(set) : fs::path(DEFT_SOURCE_ROOT);
    for (const char* way : {"", "../shared/data/topology", "../../shared/data/topology"}) {
        const fs::path here = fs::path(set != nullptr ? set : DEFT_SOURCE_ROOT) / way;
        folder = fs::exists(here / GetParam().file) ? here : folder;
    }
    if (!fs::exists(folder / GetParam().file)) {
        GTEST_SKIP() << GetParam().file
                     << " is not here: DEFT_TOPOLOGY_DATA names the folder of captured topologies";
    }
    const Machine machine = read(folder / GetParam().file);
    EXPECT_EQ(machine.gpus.size(), GetParam().gpus);
    EXPECT_EQ(machine.nics.size(), GetParam().nics);
    EXPECT_EQ(machine.devices.size(), GetParam().devices);
    std::size_t used = 0;
    Distance least = Distance::Unknown;
    for (const Nic& each : machine.nics) {
        EXPECT_EQ(each.link.empty(), !each.reason.empty()) << each.name;
        if (!each.link.empty()) {
            ++used;
            least = std::min(least, distance(machine.gpus.at(0).pci, each.pci));
        }
    }
    EXPECT_EQ(used, GetParam().used);
    EXPECT_EQ(least, GetParam().nearest) << to_string(least);
    for (const ShownDevice& device : machine.devices) {
        EXPECT_EQ(device.links.size(), machine.devices[0].links.size());  // never unequal
    }
    EXPECT_TRUE(nlohmann::json::accept(topo_json(machine)));
    EXPECT_FALSE(topo_text(machine).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Topo, CapturedMachine,
    ::testing::Values(Captured{"azure-ndv4.nccl.xml", 8, 8, 0, 0, Distance::Unknown},
                      Captured{"azure-ndv5.nccl.xml", 8, 8, 0, 0, Distance::Unknown},
                      Captured{"g5.48xl.xml", 8, 2, 1, 1, Distance::Phb},
                      Captured{"p3dn.24xl.xml", 8, 2, 1, 1, Distance::Phb},
                      Captured{"p4d.24xl.xml", 8, 8, 4, 4, Distance::Phb},
                      Captured{"p5.48xl.xml", 8, 64, 32, 8, Distance::Pix}));

// UCX may drive an interface, an RDMA port, and what only it knows.
TEST(Topo, LinksOverUcxStandNextToThoseOfTheKernel) {
    Machine machine;
    Nic eth0;
    eth0.name = "eth0";
    eth0.has_interface = true;
    eth0.link = "tcp";
    eth0.nominal_mbps = 25000;
    eth0.state = "up";
    machine.nics = {eth0};
    machine.ucx.asked = true;
    machine.ucx.version = "1.13.1";
    machine.ucx.links = {
        {"eth0", "tcp", ""}, {"cxi0", "", "no such device"}, {"rdmap0s6:1", "srd", ""}};
    const std::vector<HostLink> links = host_links(machine);
    ASSERT_EQ(links.size(), 4U);
    EXPECT_EQ(links[0].kind, "tcp");
    EXPECT_EQ(links[1].kind, "ucx");
    EXPECT_EQ(links[1].speed_mbps, 25000);
    EXPECT_EQ(links[1].driver, Driver::Deft);
    EXPECT_EQ(links[2].driver, Driver::Nobody);
    EXPECT_EQ(links[2].reason, "no such device");
    EXPECT_EQ(links[3].speed_mbps, 0);
    EXPECT_THAT(topo_text(machine), HasSubstr("under deft run, by UCX 1.13.1"));
    for (UcxLink& link : machine.ucx.links) {
        link.obstacle = "x";
    }
    EXPECT_THAT(topo_text(machine), HasSubstr("DEFT_UCX=on: no link goes over UCX"));
}

}  // namespace
}  // namespace deft::tools
