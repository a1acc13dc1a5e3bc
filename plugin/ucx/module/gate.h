// SPDX-License-Identifier: Apache-2.0
// Keeps threads out of UCX while the process exits: many jobs leave their communicators to exit(),
// whose destructors take UCX down under NCCL's and deft's threads.
#pragma once

namespace deft::ucx {

// A call into UCX, for as long as it lives.
class Call {
public:
    Call();
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // False: the process exits, and UCX may be gone.
    explicit operator bool() const { return open_; }

private:
    const bool open_;
};

}  // namespace deft::ucx
