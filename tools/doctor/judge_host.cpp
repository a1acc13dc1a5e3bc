// SPDX-License-Identifier: Apache-2.0
// Kernel, limits, clock, GPU driver.
#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tools/doctor/judge.h"

namespace deft::tools::doctor {
namespace {

const Config* config_of(const Facts& facts) {
    return facts.settings ? &facts.settings->config : nullptr;
}

void judge_tcp_features(const HostFacts& host, Diagnoses& found) {
    if (!host.window_scaling || !host.selective_acks) {
        found.push_back({Finding::TcpFeatures,
                         fmt::format("net.ipv4.{} is 0",
                                     host.window_scaling ? "tcp_sack" : "tcp_window_scaling"),
                         "/proc/sys/net/ipv4", ""});
    }
    constexpr int kUsual = 128;  // before Linux 5.4; 4096 since then
    if (host.backlog > 0 && host.backlog < kUsual) {
        found.push_back({Finding::ListenBacklog,
                         fmt::format("net.core.somaxconn is {}", host.backlog),
                         "/proc/sys/net/core/somaxconn", ""});
    }
    constexpr int kFew = 8;  // RFC 1122 asks for 100 s at least
    if (host.retries > 0 && host.retries < kFew) {
        found.push_back({Finding::TcpRetries,
                         fmt::format("net.ipv4.tcp_retries2 is {}", host.retries),
                         "/proc/sys/net/ipv4/tcp_retries2", ""});
    }
}

void judge_ports(const HostFacts& host, Diagnoses& found) {
    constexpr int kFew = 2000;  // for all connections of a host
    const int ports = host.port_high - host.port_low + 1;
    if (host.port_high <= 0 || ports - host.ports_reserved >= kFew) {
        return;
    }
    const bool reserved = ports >= kFew;
    found.push_back(
        {Finding::PortRange,
         fmt::format("net.ipv4.ip_local_port_range is {} to {}: {} ports{}", host.port_low,
                     host.port_high, ports,
                     reserved ? fmt::format(", of which net.ipv4.ip_local_reserved_ports takes {}",
                                            host.ports_reserved)
                              : std::string()),
         reserved ? "/proc/sys/net/ipv4/ip_local_reserved_ports"
                  : "/proc/sys/net/ipv4/ip_local_port_range",
         reserved ? "reserve fewer: sysctl net.ipv4.ip_local_reserved_ports=''" : ""});
}

void judge_tcp(const Facts& facts, const HostFacts& host, Diagnoses& found) {
    const Config* const config = config_of(facts);
    if (!host.congestion_wanted_error.empty() && config != nullptr) {
        const Setting& wanted = config->setting(Key::TcpCongestion);
        found.push_back({Finding::CongestionMissing,
                         fmt::format("DEFT_TCP_CONGESTION={} ({}): {}", wanted.text, wanted.origin,
                                     host.congestion_wanted_error),
                         "setsockopt(TCP_CONGESTION)", ""});
    }
    const bool automatic = config == nullptr || config->is(Key::TcpCongestion, "auto");
    if (automatic && host.congestion_default.starts_with("bbr") && !host.cubic_allowed) {
        found.push_back({Finding::CongestionBbr,
                         fmt::format("the host's congestion control is {}, and the job may not "
                                     "choose cubic",
                                     host.congestion_default),
                         "net.ipv4.tcp_congestion_control, setsockopt(TCP_CONGESTION)", ""});
    }
    // What a path of 10 Gbit/s and 1 ms holds; the kernels' default is 4 to 6 MiB.
    constexpr std::int64_t kLeast = std::int64_t{1} << 20;
    for (const auto& [name, value] :
         {std::pair("tcp_wmem", host.wmem_max), std::pair("tcp_rmem", host.rmem_max)}) {
        if (value > 0 && value < kLeast) {
            found.push_back(
                {Finding::TcpBuffers,
                 fmt::format("net.ipv4.{} allows {} bytes, less than 1 MiB", name, value),
                 fmt::format("/proc/sys/net/ipv4/{}", name), ""});
        }
    }
    judge_ports(host, found);
    judge_tcp_features(host, found);
    for (const std::string& program : host.unanswered) {
        found.push_back({Finding::ProbeUnanswered, program + " gave no answer within 5 s",
                         "it was started to list the firewall's rules, and ended", ""});
    }
    for (const std::string& rule : host.firewall) {
        found.push_back(
            {Finding::Firewall, "this host's firewall stops TCP: " + rule, "nft list ruleset", ""});
    }
}

void judge_zerocopy(const Facts& facts, const HostFacts& host, Diagnoses& found) {
    const Config* const config = config_of(facts);
    if (config != nullptr && config->is(Key::TcpZerocopy, "off")) {
        return;
    }
    if (!host.zerocopy_refused.empty()) {
        found.push_back({Finding::ZerocopyRefused,
                         "sending without copies is refused: " + host.zerocopy_refused,
                         "tried with a pipe and a socket", ""});
    } else if (!host.takes_many_pages) {
        const bool forced = config != nullptr && config->is(Key::TcpZerocopy, "on");
        found.push_back({forced ? Finding::ZerocopyOld : Finding::KernelOld,
                         fmt::format("Linux {} sends page by page{}", host.kernel,
                                     forced ? ", and DEFT_TCP_ZEROCOPY=on" : ""),
                         "tried with a pipe and a socket", ""});
    }
}

// Threads, shared memory, CPUs.
void judge_room(const Facts& facts, const HostFacts& host, Diagnoses& found) {
    constexpr std::uint64_t kThreads = 256;
    if (host.threads > 0 && host.threads < host.tasks + kThreads) {
        found.push_back({Finding::LimitThreads,
                         fmt::format("{} tasks may run, and {} do", host.threads, host.tasks),
                         "RLIMIT_NPROC, pids.max", ""});
    }
    constexpr std::int64_t kShm = std::int64_t{256} << 20;     // docker's default is 64 MiB
    constexpr std::int64_t kShmFree = std::int64_t{64} << 20;  // NCCL's segments: some 10 MB each
    if (host.shm_bytes >= 0 && host.shm_bytes < kShm) {
        found.push_back({Finding::ShmSmall,
                         host.shm_bytes == 0
                             ? std::string("there is no /dev/shm")
                             : fmt::format("/dev/shm has {} MiB", host.shm_bytes >> 20),
                         "statvfs(/dev/shm)", ""});
    } else if (!host.shm_problem.empty()) {
        found.push_back({Finding::ShmSmall,
                         "/dev/shm takes no file of this user: " + host.shm_problem,
                         "access(/dev/shm)",
                         "mount it as a tmpfs that everybody may write to: "
                         "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"});
    } else if (host.shm_free >= 0 && host.shm_free < kShmFree) {
        found.push_back({Finding::ShmSmall,
                         fmt::format("/dev/shm has {} MiB, of which {} are free",
                                     host.shm_bytes >> 20, host.shm_free >> 20),
                         "statvfs(/dev/shm)",
                         "remove what ended jobs left there (/dev/shm/nccl-*), or make it larger: "
                         "mount -o remount,size=8g /dev/shm"});
    }
    const Config* const config = config_of(facts);
    const std::int64_t threads = config == nullptr ? 0 : config->integer(Key::IoThreads);
    if (threads > 0 && host.cpus > 0 && threads >= host.cpus) {
        found.push_back(
            {Finding::ThreadsExceedCpus,
             fmt::format("DEFT_IO_THREADS={}, and the job has {} CPUs", threads, host.cpus),
             "sched_getaffinity", ""});
    }
}

using Limits = std::vector<ScriptLimit>;

constexpr std::uint64_t kFiles = 1024;
// A checkpoint is larger. NCCL's segments of shared memory are files of some 10 MB.
constexpr std::uint64_t kFileSize = std::uint64_t{1} << 30;

void judge_script_limit(const ScriptLimit& limit, Diagnoses& found) {
    constexpr std::uint64_t kProcesses =
        512;  // of a user: all of a host's ranks, and threads count
    const std::string what = fmt::format("{}:{} sets ulimit -{} to {}", limit.where.file,
                                         limit.where.line, limit.letter, limit.most);
    if (limit.letter == 'n' && limit.most < kFiles) {
        found.push_back({Finding::LimitFiles, what, limit.where.text, ""});
    } else if (limit.letter == 'u' && limit.most < kProcesses) {
        found.push_back({Finding::LimitThreads, what, limit.where.text, ""});
    } else if (limit.letter == 'f' && limit.most < kFileSize / limit.unit) {
        found.push_back({Finding::LimitFileSize, what, limit.where.text, ""});
    } else if (limit.letter == 'v') {
        found.push_back({Finding::LimitAddressSpace, what, limit.where.text, ""});
    }
}

void judge_limits(const Facts& facts, const HostFacts& host, Diagnoses& found) {
    if (host.files > 0 && host.files < kFiles) {
        found.push_back({Finding::LimitFiles,
                         fmt::format("ulimit -n is {}{}", host.files,
                                     host.files < 256 ? ": no connection gets a second path" : ""),
                         "RLIMIT_NOFILE", ""});
    }
    if (host.address_space > 0) {
        found.push_back({Finding::LimitAddressSpace,
                         fmt::format("ulimit -v is {} KiB", host.address_space / 1024), "RLIMIT_AS",
                         ""});
    }
    if (host.file_size > 0 && host.file_size < kFileSize) {
        found.push_back({Finding::LimitFileSize,
                         fmt::format("ulimit -f is {} KiB", host.file_size / 1024), "RLIMIT_FSIZE",
                         ""});
    }
    for (const ScriptLimit& limit : facts.command ? facts.command->limits : Limits()) {
        judge_script_limit(limit, found);
    }
    constexpr std::uint64_t kMemlock = std::uint64_t{64} << 20;
    if (facts.links && facts.links->rdma.use != RdmaUse::None && host.memlock > 0 &&
        host.memlock < kMemlock) {
        found.push_back(
            {Finding::LimitMemlock,
             fmt::format("RDMA is active, and ulimit -l is {} KiB", host.memlock / 1024),
             "RLIMIT_MEMLOCK", ""});
    }
    judge_room(facts, host, found);
}

void judge_clock(const HostFacts& host, Diagnoses& found) {
    const std::string& source = host.clock_source;
    if (source == "hpet" || source == "acpi_pm" || source == "jiffies") {
        found.push_back({Finding::ClockSource, fmt::format("the kernel's clock is {}", source),
                         "/sys/devices/system/clocksource", ""});
    }
    if (!host.clock_synchronised) {
        found.push_back({Finding::ClockUnsynchronised, "this host's clock is not synchronised",
                         "adjtimex", ""});
    }
}

// CUDA takes the items of CUDA_VISIBLE_DEVICES up to the first that names no GPU.
bool hides_all(const std::string& visible, std::size_t count) {
    const std::string first = visible.substr(0, visible.find(','));
    if (first.starts_with("GPU-") || first.starts_with("MIG-")) {
        return false;
    }
    const auto digits = first.find_first_not_of(' ');
    const bool number = digits != first.npos && std::isdigit(first[digits]) != 0;
    return !number || (count > 0 && std::strtoull(first.c_str(), nullptr, 10) >= count);
}

// NVIDIA's container toolkit reads the variable when a container begins: the one around this
// command, or the one that the command starts. To the latter its client hands on what its own words
// name, and nothing else.
void judge_container_gpus(const GpuFacts& gpu, const CommandFacts* command, Diagnoses& found) {
    const bool client = command != nullptr && command->container_client;
    const bool around = !client && !gpu.container_gpus.empty() && !gpu.device_file;
    const std::string hidden = around   ? gpu.container_gpus
                               : client ? command->hidden_gpus
                                        : std::string();
    if (!hidden.empty()) {
        found.push_back(
            {Finding::GpusHidden,
             fmt::format("NVIDIA_VISIBLE_DEVICES='{}' keeps every GPU out of the container",
                         hidden),
             around ? "environment, /dev" : "the words of the command",
             "ask for GPUs where the container is started: docker run --gpus all, "
             "Kubernetes: resources.limits nvidia.com/gpu"});
    }
}

void judge_gpu(const GpuFacts& gpu, const CommandFacts* command, Diagnoses& found) {
    judge_container_gpus(gpu, command, found);
    if (gpu.visible && hides_all(*gpu.visible, gpu.count)) {
        found.push_back({Finding::GpusHidden,
                         fmt::format("CUDA_VISIBLE_DEVICES='{}' hides every GPU", *gpu.visible),
                         "environment", ""});
    }
    if (gpu.count > 0 && !gpu.nvml_problem.empty()) {
        found.push_back({Finding::GpuUnseen,
                         fmt::format("{} NVIDIA GPUs are there: {}", gpu.count, gpu.nvml_problem),
                         "/sys and libnvidia-ml.so.1", ""});
    }
    if (gpu.kernel_driver.empty()) {
        found.push_back(
            {Finding::GpuNone, "no NVIDIA driver is loaded", "/proc/driver/nvidia/version", ""});
        return;
    }
    if (gpu.library.empty()) {
        found.push_back(
            {Finding::GpuDriverMismatch,
             fmt::format("the kernel has NVIDIA driver {}, and no libcuda.so.1 is found",
                         gpu.kernel_driver),
             "LD_LIBRARY_PATH and the loader's cache",
             "install the driver's libraries; in a container, use the NVIDIA runtime"});
    } else if (!gpu.library_driver.empty() && gpu.library_driver != gpu.kernel_driver) {
        found.push_back({Finding::GpuDriverMismatch,
                         fmt::format("the kernel has NVIDIA driver {}, and {} is of {}",
                                     gpu.kernel_driver, gpu.library, gpu.library_driver),
                         "/proc/driver/nvidia/version and the library's file name", ""});
    }
}

}  // namespace

void judge_host(const Facts& facts, Diagnoses& found) {
    if (!facts.host) {
        return;
    }
    const HostFacts& host = *facts.host;
    judge_tcp(facts, host, found);
    judge_zerocopy(facts, host, found);
    judge_limits(facts, host, found);
    judge_clock(host, found);
    judge_gpu(host.gpu, facts.command ? &*facts.command : nullptr, found);
}

}  // namespace deft::tools::doctor
