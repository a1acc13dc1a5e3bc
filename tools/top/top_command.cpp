// SPDX-License-Identifier: Apache-2.0
#include "tools/top/top_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>

#include "tools/text_output.h"
#include "tools/top/live_sockets.h"
#include "tools/top/top_text.h"

namespace deft::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kEvery{1};
constexpr std::chrono::seconds kPatience{5};  // for the first process to answer

std::string local_time() {
    const time_t now = ::time(nullptr);
    tm parts{};
    char text[16] = "";
    ::localtime_r(&now, &parts);
    std::strftime(text, sizeof(text), "%H:%M:%S", &parts);
    return text;
}

void fit_to_terminal(TopScreen& screen) {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 1) {
        screen.columns = size.ws_col;
        screen.lines = size.ws_row - 1u;  // the cursor's
    }
}

int nobody(const LiveSockets& sockets) {
    for (const std::string& problem : sockets.problems()) {
        complain("top: " + problem);
    }
    for (const std::string& socket : sockets.silent()) {
        complain("top: " + socket + ": no answer; the process is stopped, or too busy");
    }
    complain(
        "top: no process of yours runs deft here now; look where the job's ranks are, as the same "
        "user and in the same container");
    return kProblem;
}

TopScreen empty_screen() {
    TopScreen screen;
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    screen.host = host;
    return screen;
}

// Two snapshots of each process, for rates.
int show_once(LiveSockets& sockets) {
    TopScreen screen = empty_screen();
    screen.columns = screen.lines = SIZE_MAX;
    const auto begun = Clock::now();
    do {
        sockets.read(Clock::now() + std::chrono::milliseconds(50));
    } while (!enough(sockets.answers(), Clock::now() - begun));
    screen.ranks = sockets.ranks();
    screen.silent = sockets.silent();
    if (screen.ranks.empty()) {
        return nobody(sockets);
    }
    screen.time = local_time();
    return print(top_text(screen));
}

}  // namespace

void TopCommand::add_to(CLI::App& app) {
    top =
        app.add_subcommand("top", "Show this host's jobs while they run: plans, iterations, links")
            ->allow_extras();
    top->add_flag("--once", once, "Print one screen, as long as it takes, and end");
    top->footer("Every second until Ctrl-C. Root sees the jobs of all users. 1: there is no job.");
}

int TopCommand::run() const {
    LiveSockets sockets(::geteuid());
    if (once || ::isatty(STDOUT_FILENO) == 0) {
        return show_once(sockets);
    }
    TopScreen screen = empty_screen();
    const Clock::time_point begun = Clock::now();
    for (bool had = false;; had = !screen.ranks.empty()) {
        sockets.read(Clock::now() + kEvery);
        screen.ranks = sockets.ranks();
        screen.silent = sockets.silent();
        if (screen.ranks.empty() && (had || Clock::now() > begun + kPatience)) {
            return nobody(sockets);
        }
        screen.time = local_time();
        fit_to_terminal(screen);
        // Home, the text, and nothing below it.
        const int printed = print("\x1b[H\x1b[2J" + top_text(screen));
        if (printed != kSuccess) {
            return printed;
        }
    }
}

}  // namespace deft::tools
