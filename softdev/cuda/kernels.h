// SPDX-License-Identifier: Apache-2.0
// CPU twins of kernels, by name.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "softdev/cuda/api.h"

namespace softdev {

struct Kernel {
    std::string name;
    softdev_kernel_t fn = nullptr;
    softdev_kernel_accesses_t accesses = nullptr;
    std::optional<std::vector<std::size_t>> sizes;  ///< of the parameters, where they are known
};

/// Opens the libraries that SOFTDEV_KERNELS names, once; they register their kernels. Without the
/// lock. False, and a report, where one cannot be opened.
bool open_kernel_libraries();

/// The registered twin, or nullptr. The engine's lock is held.
std::shared_ptr<Kernel> find_kernel(const std::string& name);

/// Sizes of the parameters of a mangled name such as _Z3addPKfS0_Pfi; nothing when one is not a
/// pointer or a built-in type.
std::optional<std::vector<std::size_t>> sizes_from_name(const std::string& mangled);

/// The arguments of one launch, copied where their sizes are known.
class Arguments {
public:
    /// Copies from kernelParams; without sizes it only points at them.
    Arguments(const Kernel& kernel, void** parameters);
    /// Copies from one packed buffer, each parameter aligned to its size.
    Arguments(const Kernel& kernel, const void* buffer, std::size_t bytes);
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;

    void** pointers() { return direct_ != nullptr ? direct_ : pointers_.data(); }
    /// The caller's memory is used: the launch has to wait.
    bool borrowed() const { return direct_ != nullptr; }

private:
    std::vector<unsigned char> bytes_;
    std::vector<void*> pointers_;
    void** direct_ = nullptr;
};

}  // namespace softdev
