// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/seal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace deft::agreement {
namespace {

constexpr std::size_t kLeast = 16;
constexpr std::size_t kMost = 4096;

Seal& seal_of_process() {
    static auto& seal = *new Seal();
    return seal;
}

}  // namespace

const Seal& Seal::process() {
    return seal_of_process();
}

bool Seal::load(const std::string& path, std::string& why) {
    static Mutex mutex;
    static bool loaded = false;
    const MutexLock lock(mutex);
    if (loaded || path.empty()) {
        return true;
    }
    std::string secret;
    if (!read_secret(path, secret, why)) {
        return false;
    }
    seal_of_process() = Seal(std::as_bytes(std::span(secret)));
    loaded = true;
    return true;
}

void Seal::make(std::span<const std::byte> header, std::span<const std::byte> payload,
                std::span<std::byte> out) const {
    if (code_) {
        const Sha256Digest digest = code_->of(header, payload);
        std::copy_n(digest.begin(), out.size(), out.begin());
        return;
    }
    const std::uint32_t sum = fnv32(payload, fnv32(header));
    std::memcpy(out.data(), &sum, sizeof(sum));
}

bool Seal::good(std::span<const std::byte> header, std::span<const std::byte> payload,
                std::span<const std::byte> seal) const {
    std::array<std::byte, 16> own{};
    const std::span<std::byte> made = std::span(own).first(bytes());
    make(header, payload, made);
    return equal_in_constant_time(made, seal);
}

bool read_secret(const std::string& path, std::string& secret, std::string& why) {
    const auto broken = [&why] {
        why = std::strerror(errno);
        return false;
    };
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat about {};
    if (!fd || ::fstat(fd.get(), &about) != 0) {
        return broken();
    }
    if ((about.st_mode & (S_IROTH | S_IWOTH)) != 0) {
        why = "every user of the host may read or write it; chmod o= it";
        return false;
    }
    std::array<char, kMost + 1> buffer;
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0) {
        return broken();
    }
    secret.assign(buffer.data(), static_cast<std::size_t>(got));
    secret.erase(secret.find_last_not_of(" \t\r\n") + 1);
    if (secret.size() < kLeast || secret.size() > kMost) {
        why = "it holds " + std::to_string(secret.size()) + " bytes, not 16 to 4096";
        return false;
    }
    return true;
}

}  // namespace deft::agreement
