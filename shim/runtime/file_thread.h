// SPDX-License-Identifier: Apache-2.0
// deft-files, the thread that may wait as long as a file system likes: it looks for the kill switch
// and writes the metrics. Nobody waits for it, but exit() for a moment.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>

#include "base/monitor.h"

namespace deft {

class FileThread {
public:
    // Starts it, once in a process. Null: it cannot be started.
    static FileThread* start() noexcept;
    // Null: it has not been started.
    static FileThread* running() noexcept;

    // The file `path` of a folder of metrics is to hold `text`, sooner or later, in the place of
    // what still waits for it; an empty text: the file goes. Any thread; waits for no file.
    void put(const std::string& path, std::string text);

    // Removes what it has written, and ends. Waits `patience` at most for that. Once, any thread.
    void finish(std::chrono::nanoseconds patience) noexcept;

private:
    FileThread() = default;
    static void* thread_main(void* self) noexcept;
    void run();
    void write(const std::string& path, const std::string& text);

    Monitor monitor_;
    std::map<std::string, std::string> waiting_ DEFT_GUARDED_BY(monitor_);  // texts, by path
    bool stop_ DEFT_GUARDED_BY(monitor_) = false;
    bool finished_ DEFT_GUARDED_BY(monitor_) = false;

    std::set<std::string> written_;  // the thread's own: files that are there because of it
};

}  // namespace deft
