// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>

#include "base/config.h"
#include "base/job_folder.h"
#include "base/json_writer.h"
#include "base/rate_limit.h"
#include "base/unique_fd.h"

namespace deft::log {
namespace {

std::atomic<deft_net_logger_t> g_nccl_logger{nullptr};

// Null: no launcher has said one.
const char* launchers_rank() {
    for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
        if (const char* value = ::getenv(name)) {
            return value;
        }
    }
    return nullptr;
}

int rank_from_launcher() {
    const char* const rank = launchers_rank();
    return rank != nullptr ? std::atoi(rank) : 0;
}

// The descriptor messages go to; opened once, never closed (threads may log until the very end).
int sink() {
    static const int fd = [] {
        const std::string& pattern = Config::process().text(Key::LogFile);
        if (pattern.empty()) {
            return STDERR_FILENO;
        }
        const std::string path = in_job_folder(
            expand_pattern(pattern, rank_from_launcher(), Config::process().job_id()));
        UniqueFd opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
        if (opened && opened.get() <= STDERR_FILENO) {
            // The process has closed a standard descriptor; it must not find our file in its place.
            opened.reset(::fcntl(opened.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
        }
        if (!opened) {
            ::dprintf(STDERR_FILENO,
                      "[deft] WARN cannot open DEFT_LOG_FILE %s: %m; using standard error\n",
                      path.c_str());
            return STDERR_FILENO;
        }
        return opened.release();
    }();
    return fd;
}

// Writes one line without the SIGPIPE that a vanished reader would cause: blocked for this thread,
// and taken back if this write raised it.
void write_line(int fd, const char* line, std::size_t size) {
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    const bool pending_before = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    if (::write(fd, line, size) < 0 && errno == EPIPE && !pending_before) {
        const timespec now{};
        sigtimedwait(&pipe_signal, nullptr, &now);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

const char* word(Level level) {
    switch (level) {
        case Level::None:
            break;
        case Level::Warn:
            return "WARN";
        case Level::Info:
            return "INFO";
        case Level::Debug:
            return "DEBUG";
    }
    return "";
}

std::string utc_now() {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    tm parts{};
    char text[64] = "";
    if (::gmtime_r(&now.tv_sec, &parts) != nullptr) {
        const std::size_t length = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
        std::snprintf(text + length, sizeof(text) - length, ".%06ldZ", now.tv_nsec / 1000);
    }
    return text;
}

std::string lower(const char* text) {
    std::string result;
    for (const char* c = text; *c != '\0'; ++c) {
        result += static_cast<char>(*c | 0x20);
    }
    return result;
}

// As records write it.
std::string hexadecimal(std::uint64_t value) {
    char digits[20];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(value));
    return digits;
}

std::int64_t thread_id() {
    return ::syscall(SYS_gettid);
}

std::string json_line(const char* host, Level level, const char* text) {
    JsonWriter json(JsonWriter::Layout::Compact);
    json.begin_object().member("time", utc_now()).member("level", lower(word(level)));
    json.member("host", host).member("pid", ::getpid()).member("tid", thread_id());
    json.key("rank");
    if (launchers_rank() != nullptr) {
        json.value(rank_from_launcher());
    } else {
        json.null();
    }
    json.member("job", Config::process().job_id());
    if (const About* const about = About::current()) {
        json.member("communicator", hexadecimal(about->communicator()));
        json.member("communicator_rank", about->rank());
    }
    json.member("message", text).end_object();
    return json.text() + "\n";
}

// A value that readers of logfmt would cut is quoted.
std::string logfmt(const char* key, std::string_view value) {
    std::string text = std::string(" ") + key + "=";
    if (!value.empty() && value.find_first_of(" =\"\\") == std::string_view::npos) {
        return text.append(value);
    }
    text += '"';
    for (const char c : value) {
        if (c == '"' || c == '\\') {
            text += '\\';
        }
        text += c;
    }
    return text + '"';
}

std::string logfmt_line(const char* host, Level level, const char* text) {
    std::string line = "time=" + utc_now();
    line += logfmt("level", lower(word(level))) + logfmt("host", host);
    line += logfmt("pid", std::to_string(::getpid())) + logfmt("tid", std::to_string(thread_id()));
    if (launchers_rank() != nullptr) {
        line += logfmt("rank", std::to_string(rank_from_launcher()));
    }
    if (const std::string job = Config::process().job_id(); !job.empty()) {
        line += logfmt("job", job);
    }
    if (const About* const about = About::current()) {
        line += logfmt("communicator", hexadecimal(about->communicator()));
        line += logfmt("communicator_rank", std::to_string(about->rank()));
    }
    return line + logfmt("message", text) + "\n";
}

// Of a text that was cut at `end`: a character of UTF-8 of which not all bytes are there, goes.
void drop_cut_character(const char* text, char* end) {
    while (end > text && (static_cast<unsigned char>(end[-1]) & 0xC0) == 0x80) {
        --end;
    }
    end -= end > text && static_cast<unsigned char>(end[-1]) >= 0xC0 ? 1 : 0;
    *end = '\0';
}

// To DEFT_LOG_FILE or standard error.
void say(Level level, const char* text) {
    char host[64] = "";
    ::gethostname(host, sizeof(host) - 1);
    if (!Config::process().is(Key::LogFormat, "text")) {
        const std::string keyed = Config::process().is(Key::LogFormat, "json")
                                      ? json_line(host, level, text)
                                      : logfmt_line(host, level, text);
        write_line(sink(), keyed.data(), keyed.size());
        return;
    }
    char line[1024];
    const int length = std::snprintf(line, sizeof(line), "%s:%d:%ld [deft] %s %s\n", host,
                                     ::getpid(), ::syscall(SYS_gettid), word(level), text);
    write_line(sink(), line,
               static_cast<std::size_t>(std::clamp(length, 0, int(sizeof(line)) - 1)));
}

// What DEFT_LOG lets through. Who asks for debugging wants every line; and information, however
// much, costs no warning.
void say_within_limit(Level level, const char* text) {
    static RateLimit warnings, information;
    RateLimit& limit = level == Level::Warn ? warnings : information;
    std::uint32_t left_out = 0;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    const bool admitted = level == Level::Debug || limit.admits(now.tv_sec, left_out);
    if (left_out > 0) {
        char more[64];
        std::snprintf(more, sizeof(more), "%u lines were left out, too many at once", left_out);
        say(Level::Warn, more);
    }
    if (admitted) {
        say(level, text);
    }
}

}  // namespace

bool enabled(Level level) {
    return level != Level::None &&
           static_cast<std::int64_t>(level) <= Config::process().integer(Key::Log);
}

void configuration_warnings() noexcept {
    static std::atomic_flag said = ATOMIC_FLAG_INIT;
    if (said.test_and_set(std::memory_order_relaxed)) {
        return;
    }
    try {
        if (const std::string& problem = Config::process().central_problem(); !problem.empty()) {
            DEFT_WARN("this job runs without deft, the host's configuration is wrong: %s",
                      problem.c_str());
        }
        if (const auto ignored = Config::process().ignored_lines(); !ignored.empty()) {
            DEFT_WARN("%zu wrong line%s of %s ignored: %s%s", ignored.size(),
                      ignored.size() == 1 ? "" : "s", kSystemConfigFile, ignored.front().c_str(),
                      ignored.size() == 1 ? "" : " (`deft env` shows the others)");
        }
        for (const std::string& warning : Config::process().warnings()) {
            DEFT_WARN("%s", warning.c_str());
        }
        // All ranks would say the same.
        if (rank_from_launcher() == 0) {
            for (const std::string& overruled : Config::process().overruled()) {
                DEFT_WARN("%s", overruled.c_str());
            }
        }
    } catch (...) {
        // No memory for the configuration: whoever reads it next says so.
    }
}

void set_nccl_logger(deft_net_logger_t logger) noexcept {
    g_nccl_logger = logger;
}

void write(Level level, const char* format, ...) noexcept {
    const int saved_errno = errno;
    try {
        const deft_net_logger_t nccl = g_nccl_logger;
        const bool own = enabled(level);
        if (!own && nccl == nullptr) {
            return;
        }
        char text[896];
        va_list arguments;
        va_start(arguments, format);
        errno = saved_errno;  // for %m
        const int length = std::vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        if (length >= static_cast<int>(sizeof(text))) {
            drop_cut_character(text, text + sizeof(text) - 1);
        }
        // One message, one line, and nothing that could drive a terminal.
        for (char* c = text; *c != '\0'; ++c) {
            *c = static_cast<unsigned char>(*c) < 0x20 || *c == 0x7F ? ' ' : *c;
        }
        if (own) {
            say_within_limit(level, text);
        } else if (level == Level::Info) {
            // Shown when the user asked NCCL itself to be talkative (NCCL_DEBUG=INFO).
            nccl(DEFT_NET_LOG_INFO, DEFT_NET_SUBSYS_INIT | DEFT_NET_SUBSYS_NET, "deft", 0, "%s",
                 text);
        }
    } catch (...) {
        // A message that cannot be printed must not hurt the job.
    }
    errno = saved_errno;
}

}  // namespace deft::log
