// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace softdev::nccl {

enum LogLevel {
    kLogNone = 0,
    kLogVersion = 1,
    kLogWarn = 2,
    kLogInfo = 3,
    kLogAbort = 4,
    kLogTrace = 5
};
enum Subsystem : unsigned long {
    kSubsysInit = 0x1,
    kSubsysColl = 0x2,
    kSubsysP2p = 0x4,
    kSubsysShm = 0x8,
    kSubsysNet = 0x10,
    kSubsysGraph = 0x20,
    kSubsysTuning = 0x40,
    kSubsysEnv = 0x80,
    kSubsysAlloc = 0x100,
    kSubsysCall = 0x200,
    kSubsysProxy = 0x400,
    kSubsysNvls = 0x800,
    kSubsysBootstrap = 0x1000,
    kSubsysReg = 0x2000,
    kSubsysProfile = 0x4000,
    kSubsysRas = 0x8000,
    kSubsysAll = ~0ul
};

// NCCL_DEBUG (VERSION, WARN, INFO, ABORT, TRACE), NCCL_DEBUG_SUBSYS (list, ^ negates),
// NCCL_DEBUG_FILE (%h host, %p pid); default output is stdout, as in NCCL.
void log_info(unsigned long subsystem, const char* text, ...) __attribute__((format(printf, 2, 3)));
// Also becomes the last error.
void log_warn(const char* text, ...) __attribute__((format(printf, 1, 2)));
void log_version();  // the "NCCL version 2.28.9+softdev" line, once
void log_reset();    // ncclResetDebugInit: read the variables again
bool log_enabled(int level, unsigned long subsystem);

// The function given to network plugins (deft_net_logger_t).
void plugin_logger(int level, unsigned long subsystems, const char* file, int line,
                   const char* text, ...) __attribute__((format(printf, 5, 6)));

// The device shown in this thread's log lines; -1 none.
void log_set_device(int device);

}  // namespace softdev::nccl
