// SPDX-License-Identifier: Apache-2.0
#include "tools/run.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/config.h"
#include "base/ucx_environment.h"
#include "tools/elf_file.h"
#include "tools/environment.h"
#include "tools/environment_loss.h"
#include "tools/library.h"
#include "tools/output_file.h"
#include "tools/settings_check.h"
#include "tools/text_output.h"
#include "tools/ucx_links.h"
#include "tools/vendor_plugin.h"
#include "topology/nccl_settings.h"
#include "topology/rdma.h"

namespace deft::tools {
namespace {

struct Override {
    const char* option;
    Key key;
    std::string value;
};

// Puts the options into the environment. Empty, or the first value that is wrong.
std::string apply_options(const RunOptions& options, Environment& environment) {
    std::vector<Override> overrides = {{"--mode", Key::Mode, options.mode},
                                       {"--out", Key::Out, options.out},
                                       {"--interfaces", Key::Interfaces, options.interfaces},
                                       {"--log", Key::Log, options.log}};
    if (options.require) {
        overrides.push_back({"--require", Key::Require, "1"});
    }
    for (const Override& item : overrides) {
        if (item.value.empty()) {
            continue;
        }
        Setting parsed;
        const std::string wrong = parse_value(variable(item.key), item.value, parsed);
        if (!wrong.empty()) {
            return fmt::format("{} '{}': {}", item.option, item.value, wrong);
        }
        environment.set(variable(item.key).name, item.value);
    }
    return {};
}

// Names the plugin to NCCL, unless the user has named one, or a vendor's would be NCCL's choice and
// nobody wants it replaced. Returns what keeps deft's plugin out of the path, or an empty string.
std::string add_plugin(Environment& environment, bool replace_vendors) {
    const std::optional<std::string> plugin = environment.get("NCCL_NET_PLUGIN");
    const std::string vendors =
        plugin || replace_vendors ? std::string() : vendor_plugin(environment);
    if (!vendors.empty()) {
        return fmt::format(
            "{} is the network plugin that NCCL loads here and is kept (NCCL_NET_PLUGIN is left "
            "unset), so deft's links are not used; --plugin puts deft's in its place",
            vendors);
    }
    if (!plugin) {
        // The short name: every NCCL release knows it, and the loader finds the preloaded library
        // by its soname without a search path.
        environment.set("NCCL_NET_PLUGIN", "deft");
    } else if (!names_deft(*plugin, false)) {
        return fmt::format(
            "NCCL_NET_PLUGIN='{}' is set and is kept, so deft's links are not used; "
            "unset it or set NCCL_NET_PLUGIN=deft",
            *plugin);
    }
    const std::string net = environment.get("NCCL_NET").value_or("");
    if (!net.empty() && ::strcasecmp(net.c_str(), "deft") != 0) {
        return fmt::format(
            "NCCL_NET='{}' is set and is kept, so deft's links are not used; unset "
            "it",
            net);
    }
    return {};
}

// What UCX needs to find in its environment to leave the process that loads it alone. Returns what
// keeps deft's links off UCX, or an empty string.
std::string add_ucx(Environment& environment) {
    if (const std::string why = ucx_contradiction(environment); !why.empty()) {
        return why + "; unset it";
    }
    for (const Assignment& needed : kUcxEnvironment) {
        environment.set(needed.name, needed.value);
    }
    return {};
}

// Who carries the job on a host with RDMA, in one line; empty: there is nothing to say.
std::string network_note(const Config& config) {
    const RdmaChoice rdma = choose_rdma(config.text(Key::Sysfs), config.is(Key::Rdma, "replace"));
    if (rdma.use == RdmaUse::None) {
        return {};
    }
    if (rdma.use == RdmaUse::Replace) {
        return fmt::format("RDMA is active ({}): {} carry the job in the place of NCCL's IB ({})",
                           rdma.usable_ports(), rdma.replacement(), rdma.reason);
    }
    return fmt::format(
        "RDMA is active ({}): NCCL's IB carries the job, deft's links {} ({})", rdma.usable_ports(),
        config.is(Key::Mode, "observe") ? "are not used in mode observe" : "serve lanes",
        rdma.reason);
}

// A job's `import deft` must go on in every mode, off most of all: the module comes behind what is
// on PYTHONPATH. Where the companion is wanted Python also looks there for its sitecustomize, which
// must be found before the machine's own. A folder with a colon cannot be named in the variable.
void add_python(Environment& environment, const Config& config) {
    std::string path = environment.get("PYTHONPATH").value_or("");
    const auto usable = [](const std::string& folder) {
        return !folder.empty() && folder.find(':') == folder.npos;
    };
    if (const std::string companion = find_companion();
        wants_companion(config) && usable(companion)) {
        path = companion + (path.empty() ? "" : ":" + path);
    }
    if (const std::string module = find_python_module(); usable(module)) {
        path += (path.empty() ? "" : ":") + module;
    }
    if (!path.empty()) {
        environment.set("PYTHONPATH", path);
    }
}

// What the loader will refuse to do for this program, or an empty string.
std::string preload_obstacle(const std::string& file, int depth = 0) {
    struct stat status {};
    const ElfFile elf = read_elf(file);
    if (elf.kind == ElfFile::Kind::Script && depth < 4 && !elf.interpreter.empty()) {
        return preload_obstacle(elf.interpreter, depth + 1);
    }
    if (elf.kind != ElfFile::Kind::Elf || ::stat(file.c_str(), &status) != 0) {
        return {};
    }
    if (!elf.this_machine) {
        return fmt::format(
            "{} is built for another machine: the loader will not preload deft into "
            "it",
            file);
    }
    if (!elf.needs_loader) {
        return fmt::format(
            "{} is statically linked: nothing can be preloaded into it, only the "
            "dynamically linked programs it starts will see deft",
            file);
    }
    const bool other_identity = ((status.st_mode & S_ISUID) && status.st_uid != ::geteuid()) ||
                                ((status.st_mode & S_ISGID) && status.st_gid != ::getegid());
    if (other_identity || ::getxattr(file.c_str(), "security.capability", nullptr, 0) > 0) {
        return fmt::format(
            "{} runs with raised privileges (setuid, setgid or capabilities): the "
            "loader drops LD_PRELOAD for it",
            file);
    }
    return {};
}

// True for launchers that start the job on other hosts with this environment. A path in a private
// folder of this host means nothing there.
bool starts_elsewhere(const std::string& command) {
    constexpr std::string_view kLaunchers[] = {
        "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun",    "srun",
        "aprun",  "jsrun",   "flux",          "ssh",     "pdsh",    "parallel"};
    const std::string_view name = std::string_view(command).substr(command.rfind('/') + 1);
    return std::find(std::begin(kLaunchers), std::end(kLaunchers), name) != std::end(kLaunchers);
}

// Why the loader would end this program if the library were preloaded into it, or an empty string.
std::string other_c_library(const std::string& file, const std::string& library, int depth = 0) {
#ifdef __GLIBC__
    const ElfFile elf = read_elf(file);
    if (elf.kind == ElfFile::Kind::Script && depth < 4 && !elf.interpreter.empty()) {
        return other_c_library(elf.interpreter, library, depth + 1);
    }
    if (!elf.this_machine || elf.interpreter.empty() || library.ends_with(kGuestName)) {
        return {};
    }
    const std::string theirs = c_library_of_loader(elf.interpreter);
    if (!theirs.empty() && theirs != "glibc") {
        return fmt::format(
            "{} is a program of {} (its loader is {}), and deft's library is one of glibc, so the "
            "loader would end the program; start it without deft",
            file, theirs, elf.interpreter);
    }
#else
    static_cast<void>(file), static_cast<void>(library), static_cast<void>(depth);
#endif
    return {};
}

// A setting that cannot be what was meant, and whose it is.
struct SettingProblem {
    std::string line;  // empty: there is none
    ValueSource source = ValueSource::Default;
};

SettingProblem central_problem(const Config& config) {
    return {config.central_problem(), ValueSource::SystemFile};
}

// What does not keep a job from being started.
void warn(const Config& config) {
    for (const auto lines : {config.warnings(), config.overruled()}) {
        for (const std::string& line : lines) {
            if (!config.canary_undecided() || !line.starts_with("DEFT_CANARY=")) {
                complain("warning: " + line);
            }
        }
    }
    for (const std::string& line : config.ignored_lines()) {
        complain("warning: the line is ignored: " + line);
    }
}

// The first of the user's settings that are texts to the table, but have to name something that is
// there. Of the operator's, which stop no job, it only tells.
SettingProblem text_problem(const Config& config, const RunOptions& options) {
    // Where nobody has named it, only mode observe writes the file.
    const bool writes =
        config.is(Key::Mode, "observe") || config.setting(Key::Out).source != ValueSource::Default;
    std::vector<TextProblem> found;
    if (writes) {
        found.push_back({Key::Out, unwritable(config, Key::Out, one_folder(options.out))});
    }
    found.push_back({Key::LogFile, unwritable(config, Key::LogFile, false)});
    for (TextProblem& problem : text_settings_problems(config)) {
        found.push_back(std::move(problem));
    }
    if (const std::string problem = unusable_metrics(config); !problem.empty()) {
        complain("warning: " + problem);  // the job goes on without figures
    }
    for (TextProblem& problem : found) {
        const ValueSource source = config.setting(problem.key).source;
        if (!problem.line.empty() && source == ValueSource::SystemFile) {
            complain("warning: " + problem.line);  // the job goes on without that
        } else if (!problem.line.empty()) {
            return {std::move(problem.line), source};
        }
    }
    return {};
}

int start(const RunOptions& options, Environment& environment) {
    std::vector<char*> arguments;
    for (const std::string& word : options.command) {
        arguments.push_back(const_cast<char*>(word.c_str()));  // execvpe() does not write to them
    }
    arguments.push_back(nullptr);
    ::execvpe(arguments[0], arguments.data(), environment.for_exec().data());
    const int error = errno;
    const std::string& name = options.command.front();
    if (error == ENOENT || error == ENOTDIR) {
        // So says a script whose interpreter, and a program whose loader, is missing.
        const std::string file = find_in_path(name, environment.get("PATH").value_or(""));
        const ElfFile elf = read_elf(file);
        if (elf.interpreter.ends_with('\r')) {
            complain(
                fmt::format("cannot execute {0}: its first line ends in CR LF; sed -i "
                            "'s/\\r$//' {0}",
                            file));
            return kNotExecutable;
        }
        if (!elf.interpreter.empty()) {
            complain(fmt::format("cannot execute {}: its {} {} does not exist", file,
                                 elf.kind == ElfFile::Kind::Script ? "interpreter" : "loader",
                                 elf.interpreter));
            return kNotExecutable;
        }
        complain(fmt::format("{}: command not found", name));
        return kCommandNotFound;
    }
    complain(fmt::format("cannot execute {}: {}", name, std::strerror(error)));
    return kNotExecutable;
}

struct Preloaded {
    std::string wrong;    // nothing can be started
    std::string library;  // that is preloaded
};

// Has the library preloaded, if it can be.
Preloaded preload(const RunOptions& options, bool off, const std::string& file,
                  Environment& environment) {
    const Library library = find_library(options.library);
    if (!library.error.empty()) {
        return {library.error, ""};
    }
    if (const std::string wrong = other_c_library(file, library.path); !wrong.empty()) {
        if (!off) {
            return {wrong, ""};
        }
        complain("warning: " + wrong);  // nobody wants deft in it
        return {};
    }
    const std::string wrong =
        add_preload(environment, library.path, !starts_elsewhere(options.command.front()));
    return {wrong, wrong.empty() ? library.path : ""};
}

// What the job needs besides the preload. False: deft is required, and something weakens it.
bool add_rest(const RunOptions& options, const Config& config, bool off, const std::string& file,
              Environment& environment) {
    add_python(environment, config);
    // What only weakens deft is said, and is an error when deft is required.
    const std::string no_plugin =
        off ? std::string() : add_plugin(environment, options.replace_plugin);
    if (!off && no_plugin.empty()) {
        if (const std::string note = network_note(config); !note.empty()) {
            complain(note);
        }
    }
    const std::string no_ucx = !off && no_plugin.empty() && config.is(Key::Ucx, "on")
                                   ? add_ucx(environment)
                                   : std::string();
    // A program that hands nothing on is told once, however little of deft gets into itself.
    const std::string loss = off ? std::string() : environment_loss(options.command);
    for (const std::string& obstacle :
         {no_plugin, no_ucx, loss.empty() ? preload_obstacle(file) : loss}) {
        if (obstacle.empty()) {
            continue;
        }
        if (config.flag(Key::Require) && !off) {
            complain(obstacle + "; deft is required, nothing was started");
            return false;
        }
        complain("warning: " + obstacle);
    }
    return true;
}

}  // namespace

std::string shell_line(const RunOptions& options, const Launch& launch) {
    std::string text = "env";
    for (const char* entry : launch.after.entries()) {
        const std::string_view pair(entry);
        const std::string_view name = pair.substr(0, pair.find('='));
        if (launch.before.get(name) != launch.after.get(name)) {
            text += fmt::format(" {}={}", name, shell_quoted(launch.after.get(name).value_or("")));
        }
    }
    for (const std::string& word : options.command) {
        text += " " + shell_quoted(word);
    }
    return text + "\n";
}

bool makes_folder(const RunOptions& options, const Launch& launch) {
    return !launch.library.empty() && !launch.off && one_folder(options.out);
}

int prepare(const RunOptions& options, Launch& launch) {
    launch.before = launch.after = Environment(environ);
    Environment& environment = launch.after;
    if (options.command.empty()) {
        complain("run: no command given; usage: deft run [OPTIONS] -- COMMAND [ARGUMENT...]");
        return kUsage;
    }
    if (const std::string wrong = apply_options(options, environment); !wrong.empty()) {
        complain(wrong);
        return kUsage;
    }
    const Config config = Config::load(environment.entries(), kSystemConfigFile,
                                       text_settings_problems, options.command);
    if (!config.problems().empty()) {
        complain(config.problems().front() + "; nothing was started" +
                 (config.problems().size() > 1
                      ? fmt::format(" ({} more: see `deft env`)", config.problems().size() - 1)
                      : ""));
        return kNotStarted;
    }
    warn(config);
    // Whoever is started may give the job its id.
    launch.off = config.is(Key::Mode, "off") && !config.canary_undecided();
    SettingProblem wrong = central_problem(config);
    if (wrong.line.empty() && !launch.off) {
        wrong = text_problem(config, options);
    }
    // Nobody but the user can insist: no line of a file that is wrong holds.
    const bool insists =
        config.flag(Key::Require) && config.setting(Key::Require).source != ValueSource::SystemFile;
    if (!wrong.line.empty() && wrong.source == ValueSource::SystemFile && !insists) {
        // The operator's mistake, not this user's: the job runs as if deft were not there.
        complain("warning: " + wrong.line + "; without deft: " + options.command.front());
        environment = launch.before;
        launch.central_mistake = true;
        add_python(environment, Config::load({}, ""));
        return kSuccess;
    }
    const std::string file =
        find_in_path(options.command.front(), environment.get("PATH").value_or(""));
    const Preloaded preloaded = wrong.line.empty() ? preload(options, launch.off, file, environment)
                                                   : Preloaded{wrong.line, ""};
    if (!preloaded.wrong.empty()) {
        complain(preloaded.wrong + "; nothing was started");
        return kNotStarted;
    }
    launch.library = preloaded.library;
    return launch.library.empty() || add_rest(options, config, launch.off, file, environment)
               ? kSuccess
               : kNotStarted;
}

int run(const RunOptions& options) {
    Launch launch;
    if (const int refused = prepare(options, launch); refused != kSuccess) {
        return refused;
    }
    if (makes_folder(options, launch)) {
        if (const std::string why = make_folder(options.out); !why.empty()) {
            complain(fmt::format("--out '{}': {}; nothing was started", options.out, why));
            return kNotStarted;
        }
    }
    return start(options, launch.after);
}

}  // namespace deft::tools
