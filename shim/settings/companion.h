// SPDX-License-Identifier: Apache-2.0
// What the job's companion, the package that watches it inside PyTorch, has said in this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "deft/deft.h"

namespace deft::director {

// As the functions of these names in include/deft/deft.h. Any thread.
int companion_begin(std::uint32_t interface, std::string_view who) noexcept;
void companion_end(std::string_view why) noexcept;
bool prove_iteration(std::uint32_t module) noexcept;
void layers_wait(std::uint32_t module) noexcept;
bool note_steps(std::uint32_t module, double rate_curvature, double noise_scale) noexcept;
void refuse_proof(std::uint32_t module, std::string_view why) noexcept;

// A companion has begun, and proof is asked for, for what may come late.
bool companion_proves() noexcept;
// Its name, which has to be equal on all ranks; "": there is none.
std::string companion_name();

// Of a module's steps, at its present learning rate: deft_note_steps().
struct MeasuredSteps {
    double rate_curvature = 0;
    double noise_scale = -1;  // below 0: not known

    bool operator==(const MeasuredSteps&) const = default;
};

// What holds for a module's sums. Any thread.
struct ModuleProof {
    bool holds = false;
    bool pending = false;                // it may hold soon
    bool layers = false;                 // it holds, and its layers wait for their own
    std::string why;                     // it does not hold
    std::optional<MeasuredSteps> steps;  // null: not measured
};
ModuleProof module_proof(std::uint32_t module);

}  // namespace deft::director
