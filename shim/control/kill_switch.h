// SPDX-License-Identifier: Apache-2.0
// The operator's way to end plans in jobs that run: a file that is there.
#pragma once

#include <atomic>

namespace deft::director {

// Looked for in every job, whatever DEFT_KILL_FILE names besides.
inline constexpr char kKillFile[] = "/etc/deft/off";

// Constant-initialised and trivially destroyed. Any thread.
class KillSwitch {
public:
    static KillSwitch& process() noexcept;

    // Looks whether one of the files is there; takes as long as their file systems do.
    void look() noexcept;

    // The file that was there at the last look; null: none. It stays valid.
    const char* pulled() const noexcept { return pulled_.load(std::memory_order_acquire); }

private:
    std::atomic<const char*> pulled_{nullptr};
};

}  // namespace deft::director
