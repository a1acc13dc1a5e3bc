// SPDX-License-Identifier: Apache-2.0
// What `deft doctor` and `deft probe` read of other hosts, and of this one: what a listener says,
// results of a probe, scripts, programs, firewall rules, host files.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tools/doctor/firewall_rules.h"
#include "tools/doctor/peer_text.h"
#include "tools/doctor/rendezvous.h"
#include "tools/doctor/script_text.h"
#include "tools/elf_dynamic.h"
#include "tools/elf_file.h"
#include "tools/probe/host_list.h"
#include "tools/probe/probe_result.h"

using namespace deft::tools;

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

void read_peer(const std::string& text) {
    doctor::PeerInfo info;
    if (doctor::parse_peer_info(text, info)) {
        doctor::PeerInfo back;
        require(doctor::parse_peer_info(doctor::peer_info_text(info), back));
        require(back.links.size() == info.links.size() && back.port == info.port);
    }
}

void read_probe(const std::string& text) {
    probe::ProbeResult result;
    std::string problem;
    if (probe::add_json(text, result, problem)) {
        require(!probe::human_text(result).empty() && !probe::json_text(result).empty());
    } else {
        require(!problem.empty());
    }
}

void read_program(const std::string& bytes) {
    static const int file = ::memfd_create("program", MFD_CLOEXEC);
    static const std::string path = "/proc/self/fd/" + std::to_string(file);
    require(::ftruncate(file, 0) == 0 &&
            ::pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    (void)read_elf(path);
    (void)read_elf_dynamic(path, true);
    (void)c_library_of_loader(path);
}

}  // namespace

// The first byte chooses the reader.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0] % 8) {
        case 0:
            read_peer(text);
            break;
        case 1:
            read_probe(text);
            break;
        case 2:
            (void)doctor::read_shell_script("job.sh", text);
            break;
        case 3:
            (void)doctor::read_python_script("job.py", text);
            break;
        case 4:
            read_program(text);
            break;
        case 5:
            (void)doctor::stopping_rules(text);
            break;
        case 7:
            (void)doctor::own_name_at(text, "node1");
            break;
        case 6:
            for (const std::string& name : probe::hosts_in(text)) {
                (void)probe::host_problem(name);
            }
            break;
    }
    return 0;
}
