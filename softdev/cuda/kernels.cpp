// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/kernels.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <thread>

#include "softdev/cuda/engine.h"
#include "softdev/cuda/executor_kernels.h"
#include "softdev/cuda/report.h"

namespace softdev {
namespace {

using Kernels = std::map<std::string, std::shared_ptr<Kernel>>;

// Occupies its stream for args[0] nanoseconds and sleeps meanwhile: stands for computing in
// replayed jobs.
void spin_ns(const unsigned*, const unsigned*, void** args) {
    std::uint64_t ns = 0;
    std::memcpy(&ns, args[0], sizeof ns);
    const std::int64_t end = now_ns() + static_cast<std::int64_t>(ns);
    for (std::int64_t left = end - now_ns(); left > 0 && !device().exiting; left = end - now_ns()) {
        // In slices, so that the process can end in between.
        std::this_thread::sleep_for(
            std::chrono::nanoseconds(std::min<std::int64_t>(left, 20000000)));
    }
}

Kernels& kernels() {
    static Kernels* const value = [] {
        auto* all = new Kernels;
        auto spin = std::make_shared<Kernel>();
        spin->name = "softdev_spin_ns";
        spin->fn = spin_ns;
        spin->sizes = std::vector<std::size_t>{sizeof(std::uint64_t)};
        (*all)[spin->name] = spin;
        for (auto& kernel : executor_kernels()) {
            (*all)[kernel->name] = kernel;
        }
        return all;
    }();
    return *value;
}

// A changed copy takes the old one's place: launches that are under way keep theirs.
template <typename F>
void change(const char* name, F f) {
    if (name == nullptr) {
        return;
    }
    std::lock_guard<std::mutex> lock(device().mutex);
    std::shared_ptr<Kernel>& slot = kernels()[name];
    auto kernel = slot != nullptr ? std::make_shared<Kernel>(*slot) : std::make_shared<Kernel>();
    kernel->name = name;
    f(*kernel);
    slot = kernel;
}

std::optional<std::size_t> size_of_type(std::string type) {
    while (!type.empty() && type.front() == ' ') {
        type.erase(0, 1);
    }
    if (!type.empty() && (type.back() == '*' || type.find("*)") != std::string::npos)) {
        return sizeof(void*);
    }
    static const std::map<std::string, std::size_t> sizes = {
        {"bool", 1},  {"char", 1},           {"signed char", 1}, {"unsigned char", 1},
        {"short", 2}, {"unsigned short", 2}, {"int", 4},         {"unsigned int", 4},
        {"long", 8},  {"unsigned long", 8},  {"long long", 8},   {"unsigned long long", 8},
        {"float", 4}, {"double", 8},         {"__half", 2},      {"__nv_bfloat16", 2},
    };
    const auto found = sizes.find(type);
    return found != sizes.end() ? std::optional<std::size_t>(found->second) : std::nullopt;
}

}  // namespace

bool open_kernel_libraries() {
    static const bool opened = [] {
        const char* const names = std::getenv("SOFTDEV_KERNELS");
        std::istringstream list(names != nullptr ? names : "");
        bool all = true;
        for (std::string name; std::getline(list, name, ':');) {
            if (!name.empty() && dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
                report("SOFTDEV_KERNELS: %s", dlerror());
                all = false;
            }
        }
        return all;
    }();
    return opened;
}

std::shared_ptr<Kernel> find_kernel(const std::string& name) {
    const auto found = kernels().find(name);
    return found != kernels().end() && found->second->fn != nullptr ? found->second : nullptr;
}

std::optional<std::vector<std::size_t>> sizes_from_name(const std::string& mangled) {
    int status = 0;
    char* text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    if (text == nullptr || status != 0) {
        return std::nullopt;
    }
    const std::string name = text;
    std::free(text);
    // Its last top-level pair of parentheses holds the parameters.
    if (name.empty() || name.back() != ')') {
        return std::nullopt;
    }
    std::vector<std::size_t> sizes;
    int depth = 0;
    std::size_t end = name.size() - 1;
    for (std::size_t i = name.size() - 1; i-- > 0;) {
        const char c = name[i];
        depth += c == ')' || c == '>' ? 1 : c == '(' || c == '<' ? -1 : 0;
        if ((c == ',' && depth == 0) || depth < 0) {
            const std::string type = name.substr(i + 1, end - i - 1);
            if (depth < 0 && type.empty() && sizes.empty()) {
                return sizes;
            }
            const auto size = size_of_type(type);
            if (!size) {
                return std::nullopt;
            }
            sizes.insert(sizes.begin(), *size);
            end = i;
        }
        if (depth < 0) {
            return sizes;
        }
    }
    return std::nullopt;
}

Arguments::Arguments(const Kernel& kernel, void** parameters) {
    if (!kernel.sizes) {
        direct_ = parameters;
        return;
    }
    std::size_t total = 0;
    for (const std::size_t size : *kernel.sizes) {
        total += (size + 15) / 16 * 16;
    }
    bytes_.resize(total + 16);
    std::size_t at = 0;
    for (std::size_t i = 0; i < kernel.sizes->size(); ++i) {
        const std::size_t size = (*kernel.sizes)[i];
        std::memcpy(bytes_.data() + at, parameters[i], size);
        pointers_.push_back(bytes_.data() + at);
        at += (size + 15) / 16 * 16;
    }
}

Arguments::Arguments(const Kernel& kernel, const void* buffer, std::size_t bytes) {
    const auto* begin = static_cast<const unsigned char*>(buffer);
    bytes_.assign(begin, begin + bytes);
    bytes_.resize(bytes + 16);
    if (!kernel.sizes) {
        // The parameters' borders are unknown: eight bytes each.
        for (std::size_t at = 0; at < bytes; at += 8) {
            pointers_.push_back(bytes_.data() + at);
        }
        return;
    }
    std::size_t at = 0;
    for (const std::size_t size : *kernel.sizes) {
        const std::size_t alignment = std::clamp<std::size_t>(size, 1, 16);
        at = (at + alignment - 1) / alignment * alignment;
        pointers_.push_back(bytes_.data() + std::min(at, bytes));
        at += size;
    }
}

}  // namespace softdev

void softdevRegisterKernel(const char* name, softdev_kernel_t fn) {
    softdev::change(name, [&](softdev::Kernel& kernel) {
        kernel.fn = fn;
        if (!kernel.sizes) {
            kernel.sizes = softdev::sizes_from_name(name);
        }
    });
}

void softdevRegisterKernelSized(const char* name, softdev_kernel_t fn, const std::size_t* sizes,
                                std::size_t count) {
    softdev::change(name, [&](softdev::Kernel& kernel) {
        kernel.fn = fn;
        kernel.sizes = std::vector<std::size_t>(sizes, sizes + count);
    });
}

void softdevRegisterKernelAccesses(const char* name, softdev_kernel_accesses_t fn) {
    softdev::change(name, [&](softdev::Kernel& kernel) { kernel.accesses = fn; });
}
