// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace softdev::verbs {
namespace {

struct Block {
    std::size_t bytes = 0;
    char* alias = nullptr;
};

deft::Mutex mutex;

std::map<const char*, Block>& blocks() DEFT_REQUIRES(mutex) {
    static auto* const all = new std::map<const char*, Block>;
    return *all;
}

}  // namespace

void* allocate_device_memory(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t whole = (bytes + page - 1) / page * page;
    const deft::UniqueFd file(::memfd_create("softverbs-device", MFD_CLOEXEC));
    if (whole == 0 || !file || ::ftruncate(file.get(), static_cast<off_t>(whole)) != 0) {
        return nullptr;
    }
    void* const seen = ::mmap(nullptr, whole, PROT_NONE, MAP_SHARED, file.get(), 0);
    void* const alias = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (seen == MAP_FAILED || alias == MAP_FAILED) {
        return nullptr;
    }
    const deft::MutexLock lock(mutex);
    blocks()[static_cast<const char*>(seen)] = {whole, static_cast<char*>(alias)};
    return seen;
}

bool free_device_memory(void* at) {
    const deft::MutexLock lock(mutex);
    const auto found = blocks().find(static_cast<const char*>(at));
    if (found == blocks().end()) {
        return false;
    }
    ::munmap(at, found->second.bytes);
    ::munmap(found->second.alias, found->second.bytes);
    blocks().erase(found);
    return true;
}

char* device_alias(const void* at, std::size_t bytes, bool& outside) {
    const char* const begin = static_cast<const char*>(at);
    const deft::MutexLock lock(mutex);
    outside = false;
    auto next = blocks().upper_bound(begin);
    if (next == blocks().begin()) {
        return nullptr;
    }
    const auto& [start, block] = *--next;
    const auto offset = static_cast<std::size_t>(begin - start);
    if (offset >= block.bytes) {
        return nullptr;
    }
    outside = bytes > block.bytes - offset;
    return outside ? nullptr : block.alias + offset;
}

}  // namespace softdev::verbs
