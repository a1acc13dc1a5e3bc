// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/env.h"

#include <pthread.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>

#include "base/hash.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {

namespace {

// Lines NAME=VALUE. What is set already stands.
void set_from(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        const size_t equals = line.find('=');
        if (!line.starts_with('#') && equals != line.npos) {
            setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 0);
        }
    }
}

// The user's file, then the host's. As NCCL, which puts what they say into the environment when it
// asks for its first variable.
void read_files() {
    const char* const named = std::getenv("NCCL_CONF_FILE");
    if (named != nullptr && *named != '\0') {
        set_from(named);
    } else if (const passwd* const user = getpwuid(getuid())) {
        set_from(std::string(user->pw_dir) + "/.nccl.conf");
    }
    set_from("/etc/nccl.conf");
}

}  // namespace

std::optional<std::string> env_text(const char* name) {
    static std::once_flag once;
    std::call_once(once, read_files);
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') {
        return std::nullopt;
    }
    return std::string(value);
}

int64_t env_int(const char* name, int64_t fallback) {
    const auto text = env_text(name);
    if (!text) {
        return fallback;
    }
    errno = 0;
    char* end = nullptr;
    const long long value = std::strtoll(text->c_str(), &end, 0);
    if (errno != 0 || end == text->c_str() || *end != '\0') {
        log_info(kSubsysEnv, "Invalid value %s for %s, using default %lld.", text->c_str(), name,
                 static_cast<long long>(fallback));
        return fallback;
    }
    return value;
}

void name_thread(std::thread& thread, std::string name) {
    if (env_int("NCCL_SET_THREAD_NAME", 0) == 1) {
        name.resize(std::min<size_t>(name.size(), 15));
        pthread_setname_np(thread.native_handle(), name.c_str());
    }
}

int nccl_version() {
    return static_cast<int>(env_int("SOFTDEV_NCCL_VERSION", 22809));
}

static std::chrono::milliseconds env_seconds(const char* name, double fallback) {
    const auto text = env_text(name);
    char* end = nullptr;
    const double value = text ? std::strtod(text->c_str(), &end) : fallback;
    const bool valid = !text || (end != text->c_str() && *end == '\0' && value >= 0);
    return std::chrono::milliseconds(static_cast<int64_t>((valid ? value : fallback) * 1000));
}

Limits Limits::from_environment() {
    return {env_seconds("SOFTDEV_DEADLINE", 60), env_seconds("SOFTDEV_NCCL_GRACE", 5),
            env_text("SOFTDEV_STRICT").value_or("error") != "off"};
}

uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed) {
    // Any mixing function will do: both ends are ours.
    return deft::fnv64(data, bytes, deft::kFnv64Basis ^ seed);
}

std::string host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

uint64_t host_hash() {
    // Read once for the process, as NCCL reads NCCL_HOSTID.
    static const uint64_t hash = [] {
        if (const auto id = env_text("NCCL_HOSTID")) {
            return hash_bytes(id->data(), id->size());
        }
        std::string text = host_name();
        std::string boot;
        std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
        text += boot;
        struct stat info {};
        if (stat("/proc/self/ns/net", &info) == 0) {
            text += std::to_string(info.st_ino);
        }
        return hash_bytes(text.data(), text.size());
    }();
    return hash;
}

}  // namespace softdev::nccl
