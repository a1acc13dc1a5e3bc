// SPDX-License-Identifier: Apache-2.0
// What `deft doctor` has seen, before anybody judges it. Values only: tests make them up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "tools/observe_file.h"
#include "topology/discovery/machine.h"
#include "topology/interfaces.h"
#include "topology/rdma.h"

namespace deft::tools::doctor {

// Fewer ports than this for all ranks of a host: a rank of a large job accepts so many connections.
inline constexpr int kFewPorts = 64;

// A line of a script that matters.
struct ScriptLine {
    std::string file;
    int line = 0;
    std::string text;
};

// One program that the command comes to: behind wrappers, or named by a script.
struct ProgramFacts {
    std::string word;      // as it was named
    std::string file;      // empty: not found
    bool operand = false;  // a script that an interpreter is to read: PATH does not count
    bool executable = true;
    std::string missing_interpreter;  // a script's, or a program's loader
    bool elf = false;                 // it is no script
    bool this_machine = true;
    bool dynamic = true;    // it has a loader
    std::string c_library;  // "glibc", "musl", ...; empty: unknown
    std::string loader;
    std::string glibc;            // newest version that its C library has, "2.31"; empty: unknown
    std::string sanitizer;        // runtime that has to be the first library: "libasan.so.8"
    std::string raised;           // "setuid", "setgid", "capabilities"; empty: none of them
    bool nccl_by_handle = false;  // it names NCCL's functions and looks them up with dlsym
    bool needs_nccl = false;      // it, or a library it is linked to, refers to NCCL
};

// `ulimit -n 256` in a script.
struct ScriptLimit {
    ScriptLine where;
    char letter = 'n';  // n: open files, u: processes, v: KiB of address space, f: a file
    std::uint64_t most = 0;
    std::uint64_t unit = 1024;  // of f, in bytes
};

// What is to be run, or runs.
struct CommandFacts {
    std::vector<std::string> words;  // empty: no command was given
    bool under_deft_run = false;     // the words say so, or nothing else preloads deft
    bool assumed = false;            // as if it were started with deft run
    std::string loss;                // environment_loss(), of a wrapper
    std::string loss_from;           // file:line, if a script has the wrapper
    std::string container;           // container_doubt(), of a wrapper
    std::string rendezvous;          // lonely_rendezvous()
    std::string rendezvous_from;     // file:line, if a script has it
    std::string container_network;   // container_network()
    std::string container_from;      // file:line, if a script starts the container
    bool container_client = false;   // docker or the like starts the job
    std::string hidden_gpus;         // gpus_kept_out() of it
    std::vector<ProgramFacts> programs;
    std::vector<ScriptLine> line_ends;  // of shell scripts: the first that ends in CR LF
    std::vector<ScriptLine> preload_resets;
    std::vector<ScriptLine> preload_doubts;  // lines that may take deft out of LD_PRELOAD
    std::vector<ScriptLine> other_backends;  // lines that ask PyTorch for one without NCCL
    std::vector<ScriptLine> handles;         // lines that open NCCL or a library by handle
    std::vector<ScriptLine> deepbinds;       // lines that say RTLD_DEEPBIND
    std::vector<ScriptLimit> limits;
    bool torchrun = false;  // it gives the ranks their MASTER_ADDR
    bool srun = false;      // it starts the job on all hosts of the allocation
    bool python = false;
    ScriptLine python_path_reset;  // what sets PYTHONPATH anew; line 0: the command itself
    std::string wrong_option;      // of deft run, that it does not know
    bool imports_torch = false;    // Python is told to start it, or a script to import it
    std::string without_torch;     // the interpreter that surely has it not
    std::string python_ignores;    // the option by which Python ignores PYTHONPATH or its sites
};

struct PreloadEntry {
    std::string name;  // as it stands there
    std::string path;  // that the loader opens; empty: not found
    std::string from;  // "LD_PRELOAD", "/etc/ld.so.preload"
    std::string problem;
    bool library = false;     // libnccl-net-deft.so
    bool guest = false;       // libdeft-preload.so
    bool hooks_nccl = false;  // another library with NCCL's functions
    bool ucx_module = false;  // libdeft-ucx.so
    std::string version;      // of the library, that the guest opens
};

struct PreloadFacts {
    std::vector<PreloadEntry> entries;
    std::string split_path;       // of deft's that the loader splits
    std::string library;          // that the command would preload; empty: none
    std::string library_problem;  // why there is none
    std::string library_version;
    std::string command_version;
    std::string glibc_needed;  // by the library, "2.28"

    const PreloadEntry* ours() const {
        for (const PreloadEntry& entry : entries) {
            if (entry.library || entry.guest) {
                return &entry;
            }
        }
        return nullptr;
    }
};

struct NcclCopy {
    std::string path;
    int version = 0;         // 22809; 0: unknown
    std::string cuda;        // "12.4", that it is built for; empty: unknown
    bool is_static = false;  // linked into `path`
    std::string found_by;    // "linked to ./train", "LD_LIBRARY_PATH"
};

struct NcclFacts {
    std::vector<NcclCopy> copies;  // the first is the one that is used
    bool needed = false;           // the command surely uses NCCL
    std::string override_problem;  // DEFT_NCCL_LIB
    std::string broken;            // a file in NCCL's place at which the loader gives up
};

// A variable of NCCL's own, and where it comes from.
struct NcclValue {
    std::string value;
    std::string origin;  // "environment", "/etc/nccl.conf"
};

struct PluginFacts {
    std::map<std::string, NcclValue> settings;  // NCCL_*
    std::string vendor;                         // a libnccl-net.so that NCCL would load by itself
    bool replace_vendor = false;                // deft run --plugin
    bool findable = false;                      // the loader finds libnccl-net-deft.so by name
    bool named_path_exists = true;              // where NCCL_NET_PLUGIN is a path

    const NcclValue* setting(const std::string& name) const {
        const auto found = settings.find(name);
        return found == settings.end() ? nullptr : &found->second;
    }
};

struct SettingsFacts {
    Config config = Config::load({}, "");
    std::vector<TextProblem> texts;              // text_settings_problems()
    std::vector<std::string> unwritable;         // DEFT_OUT, DEFT_LOG_FILE
    std::vector<std::string> unusable;           // what others name: "problem; remedy"
    std::vector<std::string> contradictions;     // lines of a file against each other
    std::string kill_file;                       // the kill switch that is there
    std::vector<std::string> unread_files;       // of settings, where deft reads none
    int first_port = 0;                          // the lowest that this user may listen on
    int free_ports = -1;                         // of DEFT_PORTS, counted to kFewPorts; -1: unknown
    std::map<std::string, std::string> other;    // variables of CUDA, PyTorch, vLLM that matter
    std::vector<std::string> unknown;            // NCCL_* that nobody knows, with a guess
    bool observer_on_path = false;               // PYTHONPATH leads Python to deft's module
    std::string shadowing_site;                  // a sitecustomize.py before deft's
    std::map<std::string, std::string> origins;  // variables that the command sets: "job.sh:3"
};

struct LinkFacts {
    std::vector<Interface> all;
    InterfaceSelection chosen;
    InterfaceSelection without_list;  // what would be used if no list were set
    std::string list;                 // the variable that is set, with its value
    RdmaChoice rdma;
    std::map<std::string, int> reverse_path;    // rp_filter, the larger of NAME's and all's
    std::map<std::string, std::string> shaped;  // shaped_links()
    std::map<std::string, std::string> astray;  // astray_links()
    bool other_namespace = false;               // of the process, and it could not be entered
};

struct GpuFacts {
    std::string kernel_driver;           // "535.104.05"; empty: none
    std::string library;                 // libcuda.so.1 as a file; empty: none
    std::string library_driver;          // its version
    int cuda = 0;                        // that the driver supports: 12020; 0: unknown
    std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
    std::string container_gpus;          // NVIDIA_VISIBLE_DEVICES, where it keeps GPUs out
    std::size_t count = 0;               // GPUs that the host has
    std::string nvml_problem;            // why NVML tells nothing of them
    bool device_file = false;            // a GPU can be opened: /dev/nvidia0, /dev/dxg
};

struct HostFacts {
    std::string name;
    std::string kernel;
    bool takes_many_pages = true;  // one call sends many pages
    std::string zerocopy_refused;  // the error of vmsplice or splice
    std::string congestion_default;
    std::string congestion_wanted_error;  // of a DEFT_TCP_CONGESTION that is a name
    bool cubic_allowed = true;
    std::int64_t rmem_max = 0, wmem_max = 0;  // bytes; 0: unknown
    int port_low = 0, port_high = 0;
    int ports_reserved = 0;  // between these two
    bool window_scaling = true, selective_acks = true;
    int retries = 0;          // tcp_retries2; 0: unknown
    int backlog = 0;          // somaxconn; 0: unknown
    std::uint64_t files = 0;  // soft limits; 0: unknown
    std::uint64_t memlock = 0;
    std::uint64_t address_space = 0;
    std::uint64_t file_size = 0;
    std::string own_name_at;      // loopback address that /etc/hosts alone has for this host's name
    std::uint64_t threads = 0;    // the lowest of RLIMIT_NPROC and pids.max
    std::uint64_t tasks = 0;      // that this user, or the cgroup, has now
    std::int64_t shm_bytes = -1;  // of /dev/shm; -1: unknown, 0: there is none
    std::int64_t shm_free = -1;   // of these, that this user may take; -1: unknown
    std::string shm_problem;      // why this user makes no file there
    int cpus = 0;
    std::string clock_source;
    bool clock_synchronised = true;
    std::vector<std::string> firewall;    // rules and policies that stop TCP
    std::vector<std::string> unanswered;  // programs of the host that gave no answer in time
    GpuFacts gpu;
};

// A process of a running job.
struct ProcessFacts {
    int pid = 0;
    std::string name;
    std::string problem;  // why nothing could be read
    bool missing = false;
    char state = 'R';
    std::optional<std::string> preload;         // LD_PRELOAD that it was started with
    std::optional<std::string> parent_preload;  // its parent's, where that has deft
    std::string parent;                         // "17 (sh)"
    bool raised = false;                        // AT_SECURE
    bool is_static = false;
    std::string c_library;
    std::string library;  // of deft's, mapped
    bool library_deleted = false;
    bool guest = false;
    std::vector<NcclCopy> nccl;
    std::vector<std::string> other_plugins;  // libnccl-net-*.so that are mapped
    bool hooks_active = false;               // threads of the shim
    bool plugin_active = false;              // threads of the plugin
    bool communicates = false;               // NCCL has made a communicator
    bool observer = false;                   // PYTHONPATH has deft's module
};

// The same host facts as the other side of --peer has seen them.
struct PeerLink {
    std::string local, remote;  // interface and address
    std::string connect_error;  // empty: connected
    bool small_passed = false, full_passed = false;
    int local_mtu = 0, remote_mtu = 0;  // of links in one network; 0: unknown
};
struct PeerFacts {
    std::string address;
    std::string problem;  // why there is no answer at all
    bool known = true;    // the resolver has an address of it
    std::string host, version;
    std::map<std::string, std::string> settings, own_settings;
    std::size_t links = 0, own_links = 0;
    double clock_apart_s = 0, round_trip_s = 0;
    std::vector<PeerLink> ways;
};

struct RecordFacts {
    std::vector<ObserveFile> ranks;
    std::vector<std::string> unreadable;
    std::vector<std::string> contradictions;  // of `deft report`
};

// Everything; what was not looked at is not there.
struct Facts {
    std::optional<CommandFacts> command;
    std::optional<PreloadFacts> preload;
    std::optional<NcclFacts> nccl;
    std::optional<PluginFacts> plugin;
    std::optional<SettingsFacts> settings;
    std::optional<LinkFacts> links;
    std::optional<discovery::Ucx> ucx;
    std::optional<HostFacts> host;
    std::vector<ProcessFacts> processes;
    std::optional<PeerFacts> peer;
    std::optional<RecordFacts> records;
    std::vector<std::string> started;  // what doctor started to find out
};

}  // namespace deft::tools::doctor
