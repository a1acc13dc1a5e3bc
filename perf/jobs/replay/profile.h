// SPDX-License-Identifier: Apache-2.0
// The iteration that is replayed: stretches of compute and the gradient that exists after each.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace replay {

/// Wrong input: one line that names what, where and the remedy.
class InputError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct Bucket {
    std::uint64_t bytes = 0;  ///< of its gradient
    double ready = 0;         ///< seconds after the start of the iteration
    double forward = 0;       ///< seconds of forward that need its weights; 0: not known
};

/// Time counts from the start of the forward pass, as the job's first kernel of an iteration.
struct Profile {
    std::string name;
    double forward = 0;           ///< seconds; 0: not known
    double compute = 0;           ///< seconds of forward and backward together
    std::vector<Bucket> buckets;  ///< in the order they are sent; `ready` never falls

    std::uint64_t bytes() const;
    /// Times and sizes multiplied; sizes become whole floats, at least one.
    Profile scaled(double time, double size) const;
};

/// From the text of a file: "deft-profile" (a model or a saved profile: deft plan --save-profile),
/// "deft-sim" (deft sim --json) or "deft-observe" (recorded from a job). `name` is for messages.
/// Throws InputError.
Profile profile_from_text(const std::string& name, const std::string& text);
Profile read_profile(const std::string& path);
/// A whole file; InputError where it cannot be read.
std::string read_text(const std::string& path);

}  // namespace replay
