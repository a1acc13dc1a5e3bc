// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/file_thread.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "shim/control/kill_switch.h"
#include "shim/runtime/metrics_folder.h"

namespace deft {
namespace {

constexpr std::chrono::seconds kLookEvery{3};

std::atomic<FileThread*> g_running{nullptr};

}  // namespace

FileThread* FileThread::running() noexcept {
    return g_running.load(std::memory_order_acquire);
}

FileThread* FileThread::start() noexcept {
    int error = ENOMEM;
    try {
        auto* const files = new FileThread;  // never freed: the thread may hang in a file system
        error = start_thread("deft-files", 256 * 1024, thread_main, files);
        if (error == 0) {
            g_running.store(files, std::memory_order_release);
            return files;
        }
        delete files;
    } catch (...) {
    }
    DEFT_WARN("no thread for files (%s): the kill switch is not seen, and no metrics are written",
              std::strerror(error));
    return nullptr;
}

void* FileThread::thread_main(void* self) noexcept {
    auto* const files = static_cast<FileThread*>(self);
    for (bool ended = false; !ended;) {
        try {
            files->run();
            ended = true;
        } catch (...) {
            DEFT_WARN_ONCE("out of memory: some metrics are not written");
        }
    }
    Monitor::Lock lock(files->monitor_);
    files->finished_ = true;
    lock.notify();
    return nullptr;
}

void FileThread::run() {
    for (;;) {
        director::KillSwitch::process().look();
        std::map<std::string, std::string> texts;
        bool stop = false;
        {
            Monitor::Lock lock(monitor_);
            const auto until = std::chrono::steady_clock::now() + kLookEvery;
            while (!stop_ && waiting_.empty() && lock.wait_until(until)) {
            }
            texts.swap(waiting_);
            stop = stop_;
        }
        if (stop) {
            for (const std::string& path : written_) {
                ::unlink(path.c_str());
            }
            return;
        }
        for (const auto& [path, text] : texts) {
            write(path, text);
        }
    }
}

void FileThread::write(const std::string& path, const std::string& text) {
    if (text.empty()) {
        if (written_.erase(path) != 0) {
            ::unlink(path.c_str());
        }
        return;
    }
    const std::string problem = written_.contains(path) ? "" : make_room(path);
    const int error = problem.empty() ? write_metrics(path, text) : 0;
    if (error == 0 && problem.empty()) {
        written_.insert(path);
    } else {
        DEFT_WARN_ONCE("cannot write the metrics %s: %s; the job goes on", path.c_str(),
                       problem.empty() ? std::strerror(error) : problem.c_str());
    }
}

void FileThread::put(const std::string& path, std::string text) {
    Monitor::Lock lock(monitor_);
    waiting_[path] = std::move(text);
    lock.notify();
}

void FileThread::finish(std::chrono::nanoseconds patience) noexcept {
    const auto until = std::chrono::steady_clock::now() + patience;
    Monitor::Lock lock(monitor_);
    stop_ = true;
    lock.notify();
    while (!finished_ && lock.wait_until(until)) {
    }
}

}  // namespace deft
