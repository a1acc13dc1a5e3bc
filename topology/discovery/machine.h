// SPDX-License-Identifier: Apache-2.0
// A host as `deft topo` shows it, from whatever source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "topology/affinity.h"
#include "topology/discovery/nvlink.h"
#include "topology/interfaces.h"
#include "topology/pci.h"
#include "topology/rdma.h"

namespace deft::discovery {

struct Gpu {
    PciPlace pci;
    std::string model;
    double pci_gbytes = 0;  // of its PCI link, GB/s; 0: not known
    std::string uuid;
    int sm = 0;  // compute capability, 90 for 9.0; 0: not known
    std::vector<NvLinks> nvlinks;
    // Who says what they carry: "nvml" and "hwloc" tell nominal rates, "nccl" what NCCL counts
    // with.
    std::string nvlink_source;
    double c2c_gbytes = 0;  // NVLink-C2C to its CPU, GB/s
    // NVLink across hosts: GPUs of hosts with the same cluster and clique reach each other.
    std::string cluster;  // a UUID; empty: none
    unsigned clique = 0;
    bool hidden = false;  // the host has it, and this process may not use it
};

struct Nic {
    std::string name;  // of the network interface, else of the RDMA device, else the PCI address
    bool has_interface = false;
    std::string rdma;   // RDMA device of the same function
    std::string kind;   // "ethernet", "infiniband", "efa", "virtual", "loopback"
    std::string model;  // or driver
    PciPlace pci;
    double pci_gbytes = 0;
    std::int64_t speed_mbps = 0;    // it runs at now, else nominal; 0: not known
    std::int64_t nominal_mbps = 0;  // it is made or configured for; 0: as speed_mbps
    std::string wire;               // Interface::wire
    std::vector<std::string> addresses;
    std::string state = "unknown";  // "up", "down", "unknown" (from a file)
    std::string link;               // how deft uses it: "tcp"; empty if it does not
    std::string reason;             // why not
};

// A host that holds more of either is a broken or a hostile file.
constexpr std::size_t kMostGpus = 512;
constexpr std::size_t kMostNics = 4096;

// What NCCL would be shown.
struct ShownDevice {
    std::string name;
    std::vector<std::string> links;
    std::string nearest;
    std::int64_t speed_mbps = 0;
    bool shared = false;
};

// Links over UCX, where they were asked for (DEFT_UCX=on).
struct UcxLink {
    std::string name;        // as UCX_NET_DEVICES has it; empty: those that UCX chooses
    std::string transports;  // by which UCX may drive it: "tcp", "rc_mlx5 ud_mlx5"
    std::string obstacle;    // empty: deft drives it by UCX
};
struct Ucx {
    // In the order in which one explains the next.
    enum class Obstacle : std::uint8_t {
        None,
        Unprepared,  // the environment lacks what keeps UCX a guest, or contradicts it
        NoModule,    // libdeft-ucx.so is not there
        NoLibrary,   // it is, and the loader does not find UCX
        OtherBuild,  // the module is not of this build, or UCX is too old for it
        NoAnswer,    // UCX does not come up
        NoDevice     // UCX has none of the devices
    };
    bool asked = false;
    Obstacle obstacle = Obstacle::None;
    std::string problem;  // what is in the way, in words; of devices: of the first
    std::string module;   // the file; empty: none
    std::string version;  // of UCX: "1.13.1"; empty: not known
    std::vector<UcxLink> links;
    std::vector<std::string> devices;  // all that UCX has here: "tcp/eth0"
};

struct Machine {
    std::string source;
    bool live = false;
    std::size_t hosts = 1;        // that the file holds: NCCL dumps the hosts of an NVLink domain
    std::size_t host = 1;         // of them, from 1 on: this one
    std::string problem;          // of the choice of interfaces
    std::vector<int> numa_nodes;  // in order; empty: not known
    std::vector<Gpu> gpus;
    std::vector<Nic> nics;
    std::vector<ShownDevice> devices;
    RdmaChoice rdma;                 // its RDMA ports, and who carries a job over them
    Ucx ucx;                         // of this host alone: files do not tell
    std::vector<std::string> notes;  // what could not be found out, and why
};

// Reads one host, counted from 1, of a file's text: hwloc's XML or NCCL's. False and what is wrong,
// without the path, in `problem`. `path` names the source.
bool read_machine_text(const std::string& path, const std::string& text, std::size_t host,
                       Machine& machine, std::string& problem);
// `root`: where sysfs is mounted.
void read_sysfs_machine(const std::string& root, Machine& machine);
// Another host by a copy of its sysfs. False and one line in `problem` if the folder is none.
bool read_sysfs_copy(const std::string& root, Machine& machine, std::string& problem);
// This host: its devices by hwloc, where the command was built with it, else by sysfs; its
// interfaces, and which of them the settings choose.
Machine this_machine();

// Adds what the kernel knows of interfaces; `selection` says which are used.
void add_interfaces(const std::vector<Interface>& all, const InterfaceSelection& selection,
                    Machine& machine);
// For a machine of a file, whose interfaces' state nobody knows: what deft would use if it is up
// and has an address.
void judge_by_hardware(Machine& machine);
void add_devices(Machine& machine);

// The readers behind read_machine_text.
struct XmlElement;
bool read_nccl_xml(const XmlElement& system, std::size_t host, Machine& machine,
                   std::string& problem);
bool read_hwloc_xml(const XmlElement& topology, Machine& machine, std::string& problem);
bool read_hwloc_live(Machine& machine);  // false without hwloc
// The GPUs of this host by NVML: names, NVLinks, NVLink domains. Where it cannot tell there is a
// note.
void read_nvml(Machine& machine);

// "0000:10:1c.0" of "00000000:10:1C.0"; `text` itself if it is no address of a PCI device.
std::string pci_address_of(std::string_view text);

// What a PCI class (0xCCSSPP) and vendor make of a device.
bool is_gpu(std::uint32_t pci_class, std::uint32_t vendor);
// The ports by which the NVLink switches of HGX systems are managed: a ConnectX-7 with a PCI link
// of one or two lanes (GB/s; 0: not known).
bool manages_switch(std::uint32_t vendor, std::uint32_t device, double pci_gbytes);
std::string nic_kind(std::uint32_t pci_class, std::uint32_t vendor, std::uint32_t device);

}  // namespace deft::discovery
