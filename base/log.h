// SPDX-License-Identifier: Apache-2.0
// Messages of the library: one line each, to standard error or DEFT_LOG_FILE, quiet by default.
//
// Any thread. Never throws, never exits, keeps errno; a reader of standard error that has gone away
// costs the process nothing (no SIGPIPE). Not for the data path.
#pragma once

#include <atomic>
#include <cstdarg>
#include <cstdint>

#include "deft/abi/net.h"

namespace deft::log {

enum class Level { None, Warn, Info, Debug };

// True if a message of this level would be printed; cheap.
bool enabled(Level level);

// Formats one line as printf does and writes it with one system call:
//   host:pid:tid [deft] WARN text
// or as JSON or key=value (DEFT_LOG_FORMAT). Of WARN and of INFO at most 500 lines in ten
// seconds.
[[gnu::format(printf, 2, 3)]] void write(Level level, const char* format, ...) noexcept;

// The configuration's warnings (unknown DEFT_* names, a system file that is wrong), one line each,
// at the first call of the process: shim and plugin both read the configuration.
void configuration_warnings() noexcept;

// From now on INFO lines that DEFT_LOG holds back go to NCCL's own logger, which shows them under
// NCCL_DEBUG=INFO. NULL ends that. Called by the plugin's init.
void set_nccl_logger(deft_net_logger_t logger) noexcept;

// While it lives, what its thread logs is about this communicator, and says so as JSON and
// key=value. One may be inside another. Costs two stores.
class About {
public:
    About(std::uint64_t communicator, int rank) noexcept
        : before_(current_), communicator_(communicator), rank_(rank) {
        current_ = this;
    }
    ~About() { current_ = before_; }
    About(const About&) = delete;
    About& operator=(const About&) = delete;

    // Null: about none. For the thread that asks.
    static const About* current() { return current_; }
    std::uint64_t communicator() const { return communicator_; }  // equal on all its ranks
    int rank() const { return rank_; }                            // this process's in it

private:
    static inline thread_local const About* current_ = nullptr;
    const About* before_;
    std::uint64_t communicator_;
    int rank_;
};

// Prints once per call site and process, however often it is reached.
#define DEFT_WARN_ONCE(...)                                            \
    do {                                                               \
        static std::atomic_flag deft_warned = ATOMIC_FLAG_INIT;        \
        if (!deft_warned.test_and_set(std::memory_order_relaxed)) {    \
            ::deft::log::write(::deft::log::Level::Warn, __VA_ARGS__); \
        }                                                              \
    } while (false)
#define DEFT_WARN(...) ::deft::log::write(::deft::log::Level::Warn, __VA_ARGS__)
#define DEFT_INFO(...) ::deft::log::write(::deft::log::Level::Info, __VA_ARGS__)
#define DEFT_DEBUG(...) ::deft::log::write(::deft::log::Level::Debug, __VA_ARGS__)

}  // namespace deft::log
