// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/host_facts.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/unique_fd.h"
#include "tools/doctor/firewall_rules.h"
#include "tools/doctor/gpu_facts.h"
#include "tools/doctor/rendezvous.h"
#include "tools/foreign.h"

namespace deft::tools::doctor {
namespace {

std::string read_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// The third of "4096 87380 6291456"; 0: not there.
std::int64_t third_number(const std::string& path) {
    std::istringstream text(read_line(path));
    std::int64_t low = 0;
    std::int64_t usual = 0;
    std::int64_t high = 0;
    return text >> low >> usual >> high ? high : 0;
}

// How many ports of "8080,9000-9999" lie between two others.
int ports_within(const std::string& list, int low, int high) {
    int count = 0;
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
        const auto dash = part.find('-');
        const int first = std::atoi(part.c_str());
        const int last = dash == part.npos ? first : std::atoi(part.c_str() + dash + 1);
        count += std::max(0, std::min(last, high) - std::max(first, low) + 1);
    }
    return count;
}

bool may_choose(const char* congestion, std::string& error) {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd || ::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, congestion,
                            static_cast<socklen_t>(std::strlen(congestion))) == 0) {
        return true;
    }
    error = errno == ENOENT  ? "this kernel does not have it"
            : errno == EPERM ? "this user may not choose it"
                             : std::strerror(errno);
    return false;
}

void read_tcp(const Config& config, HostFacts& facts) {
    const std::string root = "/proc/sys/net/ipv4/";
    facts.congestion_default = read_line(root + "tcp_congestion_control");
    std::string ignored;
    facts.cubic_allowed = may_choose("cubic", ignored);
    const std::string& wanted = config.text(Key::TcpCongestion);
    if (wanted != "auto" && wanted != "system" && !wanted.empty()) {
        may_choose(wanted.c_str(), facts.congestion_wanted_error);
    }
    facts.rmem_max = third_number(root + "tcp_rmem");
    facts.wmem_max = third_number(root + "tcp_wmem");
    facts.window_scaling = read_line(root + "tcp_window_scaling") != "0";
    facts.selective_acks = read_line(root + "tcp_sack") != "0";
    facts.retries = std::atoi(read_line(root + "tcp_retries2").c_str());
    facts.backlog = std::atoi(read_line("/proc/sys/net/core/somaxconn").c_str());
    std::istringstream range(read_line(root + "ip_local_port_range"));
    range >> facts.port_low >> facts.port_high;
    facts.ports_reserved =
        ports_within(read_line(root + "ip_local_reserved_ports"), facts.port_low, facts.port_high);
}

std::uint64_t soft_limit(__rlimit_resource_t resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                                 : 0;
}

// The limit of the cgroup, where it is below that of the user.
void read_tasks(HostFacts& facts) {
    facts.threads = soft_limit(RLIMIT_NPROC);
    if (::geteuid() == 0) {
        facts.threads = 0;  // does not count for root
    }
    const std::string own = read_line("/proc/self/cgroup");
    const auto path = own.rfind(':');
    const std::string folder =
        "/sys/fs/cgroup" + (path == own.npos ? std::string() : own.substr(path + 1));
    const std::string most = read_line(folder + "/pids.max");
    if (!most.empty() && most != "max") {
        facts.threads = std::strtoull(most.c_str(), nullptr, 10);
        facts.tasks = std::strtoull(read_line(folder + "/pids.current").c_str(), nullptr, 10);
    }
}

// CAP_IPC_LOCK of the host's own user namespace: root, unless a container took it away.
bool may_lock_all() {
    constexpr unsigned kIpcLock = 14;
    std::ifstream status("/proc/self/status");
    bool capable = false;
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("CapEff:")) {
            capable = (std::strtoull(line.c_str() + 7, nullptr, 16) >> kIpcLock & 1) != 0;
        }
    }
    std::istringstream map(read_line("/proc/self/uid_map"));
    std::uint64_t inside = 1;
    std::uint64_t outside = 1;
    std::uint64_t count = 0;
    map >> inside >> outside >> count;
    return capable && inside == 0 && outside == 0 && count == UINT32_MAX;
}

void read_limits(HostFacts& facts) {
    facts.files = soft_limit(RLIMIT_NOFILE);
    facts.address_space = soft_limit(RLIMIT_AS);
    facts.file_size = soft_limit(RLIMIT_FSIZE);
    facts.memlock = may_lock_all() ? 0 : soft_limit(RLIMIT_MEMLOCK);
    read_tasks(facts);
    struct statvfs shm {};
    if (::statvfs("/dev/shm", &shm) == 0) {
        facts.shm_bytes = static_cast<std::int64_t>(shm.f_blocks * shm.f_frsize);
        facts.shm_free = static_cast<std::int64_t>(shm.f_bavail * shm.f_frsize);
        if (::access("/dev/shm", W_OK | X_OK) != 0) {
            facts.shm_problem = std::strerror(errno);
        }
    } else if (errno == ENOENT) {
        facts.shm_bytes = 0;
    }
    cpu_set_t cpus;
    if (::sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        facts.cpus = CPU_COUNT(&cpus);
    }
}

// Rules of both kinds: a host may have some of each.
void read_firewall(HostFacts& facts) {
    for (const char* const lister : {"nft list ruleset", "iptables-save"}) {
        std::istringstream text(lister);
        std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
        for (const char* const folder : {"/usr/sbin/", "/sbin/"}) {
            const std::string file = folder + words.front();
            if (::access(file.c_str(), X_OK) != 0) {
                continue;
            }
            words.front() = file;
            const auto rules = output_in_time(words);
            if (!rules) {
                facts.unanswered.push_back(file);
            }
            facts.firewall = stopping_rules(rules.value_or(""));
            break;
        }
        if (!facts.firewall.empty()) {  // the same again in the other's words
            return;
        }
    }
}

}  // namespace

bool takes_many_pages(std::string& refused) {
    constexpr std::size_t kPieces = 16;
    int ends[2];
    int pipe_ends[2];
    if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
        return true;
    }
    const UniqueFd to(ends[0]);
    const UniqueFd from(ends[1]);
    if (::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return true;
    }
    const UniqueFd out(pipe_ends[0]);
    const UniqueFd in(pipe_ends[1]);
    std::array<char, 2 * kPieces> bytes{};
    std::array<iovec, kPieces> pieces{};
    for (std::size_t i = 0; i < kPieces; ++i) {
        pieces[i] = {&bytes[2 * i], 1};
    }
    if (::vmsplice(in.get(), pieces.data(), kPieces, SPLICE_F_NONBLOCK) < 0) {
        refused = std::string("vmsplice: ") + std::strerror(errno);
        return false;
    }
    if (::splice(out.get(), nullptr, to.get(), nullptr, kPieces, SPLICE_F_NONBLOCK) < 0) {
        refused = std::string("splice: ") + std::strerror(errno);
        return false;
    }
    return ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) ==
           static_cast<ssize_t>(kPieces);
}

HostFacts read_host(const Config& config, const Environment& environment) {
    HostFacts facts;
    utsname names{};
    if (::uname(&names) == 0) {
        facts.name = names.nodename;
        facts.kernel = names.release;
        std::ifstream hosts("/etc/hosts");
        const std::string text{std::istreambuf_iterator<char>(hosts), {}};
        facts.own_name_at = own_name_at(text, facts.name);
    }
    facts.takes_many_pages = takes_many_pages(facts.zerocopy_refused);
    read_tcp(config, facts);
    read_limits(facts);
    facts.clock_source =
        read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    timex clock{};
    facts.clock_synchronised = ::adjtimex(&clock) != TIME_ERROR;
    read_firewall(facts);
    facts.gpu = read_gpu(environment);
    return facts;
}

}  // namespace deft::tools::doctor
