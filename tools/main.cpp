// SPDX-License-Identifier: Apache-2.0
// The `deft` command: reads the command line and calls the subcommand.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/build_version.h"
#include "base/nearest.h"
#include "tools/completion.h"
#include "tools/doctor/doctor_command.h"
#include "tools/doctor/dry_run.h"
#include "tools/env.h"
#include "tools/library.h"
#include "tools/number_in.h"
#include "tools/planner/commands.h"
#include "tools/probe/probe_command.h"
#include "tools/report.h"
#include "tools/run.h"
#include "tools/text_output.h"
#include "tools/top/top_command.h"
#include "tools/topo_command.h"
#include "tools/version_text.h"

namespace deft::tools {
namespace {

// CLI11 knows nothing of the command behind "--".
class RunHelp : public CLI::Formatter {
    std::string make_usage(const CLI::App*, std::string) const override {
        return "Usage: deft run [OPTIONS] -- COMMAND [ARGUMENT...]\n";
    }
};

struct CommandLine {
    CLI::App app{"deft: makes NCCL training jobs faster on the links they already have", "deft"};
    bool version = false;
    std::string library;
    RunOptions run;
    EnvOptions env;
    ReportOptions report;
    TopoOptions topo;
    PlannerCommands planner;
    DoctorCommands doctor;
    ProbeCommand probe;
    TopCommand top;
    bool json = false, markdown = false, man = false, conf = false;
    std::string shell;
    CLI::App* run_command = nullptr;
    CLI::App* env_command = nullptr;
    CLI::App* report_command = nullptr;
    CLI::App* topo_command = nullptr;
    CLI::App* version_command = nullptr;
    CLI::App* help_command = nullptr;
    CLI::App* completion_command = nullptr;
    std::string help_of;

    CommandLine() {
        app.allow_extras();
        app.set_help_flag("-h,--help", "Show this help");
        app.add_flag("-V,--version", version,
                     "Show the version, and the library that would be used");
        app.add_option("--library", library, "Use this libnccl-net-deft.so");
        add_run();
        add_env();
        add_report();
        add_topo();
        planner.add_to(app);
        doctor.add_to(app);
        probe.add_to(app);
        top.add_to(app);
        version_command = app.add_subcommand("version", "Same as --version")->allow_extras();
        version_command->add_option("--library", library, "Look at this libnccl-net-deft.so");
        completion_command = app.add_subcommand(
            "completion", "Print what makes a shell complete this command: bash, zsh, fish");
        completion_command->add_option("shell", shell, "The shell")
            ->required()
            ->check(CLI::IsMember({"bash", "zsh", "fish"}));
        help_command = app.add_subcommand("help", "Show this help, or that of a command");
        help_command->add_option("command", help_of, "The command");
        app.footer("`deft COMMAND --help` says more. Manual pages: deft(1), deft.conf(5).");
    }

private:
    void add_run() {
        run_command =
            app.add_subcommand("run", "Run a command with deft in its NCCL")->allow_extras();
        run_command->formatter(std::make_shared<RunHelp>());
        run_command->add_option(
            "--mode", run.mode,
            "What deft may change in the job (DEFT_MODE); deft and covap also want proof by the "
            "companion, or DEFT_GRADIENTS=trust");
        run_command->add_flag(
            "--require", run.require,
            "Fail where deft cannot help, instead of doing without (DEFT_REQUIRE)");
        run_command->add_option("--out", run.out,
                                "File of the ranks' records (DEFT_OUT); %h host, %j job, %r rank");
        run_command->add_option("--interfaces", run.interfaces,
                                "Network interfaces to use (DEFT_INTERFACES)");
        run_command->add_option("--log", run.log, "Least important message to print (DEFT_LOG)");
        run_command->add_option("--library", library, "Preload this libnccl-net-deft.so");
        run_command->add_flag(
            "--plugin", run.replace_plugin,
            "Use deft's network plugin also where NCCL would load a vendor's libnccl-net.so");
        run_command->add_flag("--dry-run", run.dry_run,
                              "Say what would happen, and start nothing; exit status as of doctor");
        run_command->footer(
            "The command keeps the process id; its exit status and signals are its own. 125: "
            "nothing was\n"
            "started (configuration or library), 126: not executable, 127: no such command.");
    }

    void add_report() {
        report_command =
            app.add_subcommand("report",
                               "Show what the ranks recorded (mode observe, or DEFT_OUT set)")
                ->allow_extras();
        report_command->add_option("files", report.files, "Files with the records of one job");
        report_command->add_flag("--json", report.json, "For programs");
        report_command->add_flag(
            "--html", report.html,
            "A page for a browser, to standard output; it needs no other file");
        report_command->add_option("--trace", report.trace,
                                   "Also write the latest measured iterations to this file, for "
                                   "ui.perfetto.dev or chrome://tracing");
    }

    void add_topo() {
        topo_command =
            app.add_subcommand("topo", "Show GPUs, NICs, their distances, and what deft would use")
                ->allow_extras();
        topo_command->add_option("--input", topo.input,
                                 "Instead of this host: hwloc's or NCCL's XML, or a folder with a "
                                 "copy of another host's /sys");
        topo_command
            ->add_option("--host", topo.host,
                         "Which host of a file that holds several (NCCL's dumps of NVLink domains)")
            ->check(number_in(1U, 1000000U));
        topo_command->add_flag("-m,--matrix", topo.matrix,
                               "Only the matrix of GPUs and NICs, in full");
        topo_command->add_flag("--json", topo.json, "For programs");
    }

    void add_env() {
        env_command = app.add_subcommand("env", "Show the configuration and where it comes from")
                          ->allow_extras();
        env_command->footer(
            "deft env -- COMMAND: as COMMAND would have it, for sections that "
            "name an executable.");
        env_command->add_flag("--json", json, "For programs");
        env_command->add_flag("--markdown", markdown, "The reference page (docs/configuration.md)");
        env_command->add_flag("--conf", conf, "A deft.conf in which everything is a comment");
        env_command->add_flag("--man", man, "The manual page deft.conf(5)");
    }
};

std::vector<std::string> option_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) {
            names.push_back("--" + name);
        }
    }
    return names;
}

std::string hint(std::string_view word, const std::vector<std::string>& names,
                 const char* otherwise) {
    const std::vector<std::string_view> views(names.begin(), names.end());
    const std::string_view guess = nearest(word, views);
    return guess.empty() ? otherwise : fmt::format("did you mean {}?", guess);
}

int unexpected(const CLI::App& app, const std::string& command, std::string word) {
    word = word.substr(0, word.find('='));
    const std::string where = command.empty() ? "" : command + ": ";
    if (word.starts_with("-")) {
        complain(fmt::format("{}unknown option {}; {}", where, word,
                             hint(word, option_names(app), "see --help")));
    } else {
        complain(fmt::format("{}unexpected argument '{}'; see --help", where, word));
    }
    return kUsage;
}

std::string command_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        names.push_back(command->get_name());
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

int unknown_command(const CommandLine& line, const std::string& word) {
    std::vector<std::string> names;
    for (const CLI::App* command : line.app.get_subcommands([](const CLI::App*) { return true; })) {
        names.push_back(command->get_name());
    }
    complain(fmt::format("unknown command '{}'; {}", word, hint(word, names, "see deft --help")));
    return kUsage;
}

int show_version(const std::string& wanted) {
    const Library library = find_library(wanted);
    std::string text = fmt::format("deft {}\n", build_version());
    if (!library.error.empty()) {
        print(text);
        complain(library.error);
        return kProblem;
    }
    const std::string version = library_version(library.path);
    text += fmt::format("library {} {}\n", printable(library.path), printable(version));
    const int printed = print(text + version_details(library.path));
    if (version != build_version()) {
        complain(fmt::format("{}: {}, this command is {}; install both from one build",
                             library.path, version, build_version()));
        return kProblem;
    }
    return printed;
}

// Cuts the command to run off a `deft run` line: what follows "--", or with `operands` the first
// word that is neither an option nor an option's value. The rest is for the option parser.
std::vector<std::string> take_command(const CLI::App& run, std::vector<std::string>& arguments,
                                      bool operands) {
    const auto position = std::find(arguments.begin(), arguments.end(), run.get_name());
    if (position == arguments.end() ||
        std::any_of(arguments.begin(), position,
                    [](const std::string& word) { return !word.starts_with("-"); })) {
        return {};
    }
    auto word = position + 1;
    while (word != arguments.end() && *word != "--" &&
           (!operands || (word->starts_with("-") && *word != "-"))) {
        const bool joined = word->find('=') != std::string::npos;
        const CLI::Option* option = run.get_option_no_throw(*word);
        const bool takes_value = option != nullptr && option->get_items_expected_max() > 0;
        const bool has_value = word + 1 != arguments.end() && *(word + 1) != "--";
        word += takes_value && !joined && has_value ? 2 : 1;
    }
    std::vector<std::string> command(word, arguments.end());
    if (!command.empty() && command.front() == "--") {
        command.erase(command.begin());
    }
    arguments.erase(word, arguments.end());
    return command;
}

// `deft` without a command.
int no_command(CommandLine& line) {
    const std::vector<std::string> extra = line.app.remaining();
    if (extra.empty() || extra.front() == "--") {
        complain("no command given; usage: deft COMMAND, one of " + command_names(line.app) +
                 "; see deft --help");
        return kUsage;
    }
    return extra.front().starts_with("-") ? unexpected(line.app, "", extra.front())
                                          : unknown_command(line, extra.front());
}

int help(CommandLine& line, const std::vector<CLI::App*>& chosen) {
    // The name of a command is taken for the command.
    if (chosen.size() > 1) {
        return print(chosen[1]->help("deft"));
    }
    // Not app.help(), which is that of the command in hand.
    return !line.help_of.empty() ? unknown_command(line, line.help_of)
                                 : print(line.app.get_formatter()->make_help(
                                       &line.app, "deft", CLI::AppFormatMode::Normal));
}

int env(CommandLine& line) {
    if (line.json + line.markdown + line.man + line.conf > 1) {
        complain("env: choose one of --json, --markdown, --man, --conf");
        return kUsage;
    }
    using Format = EnvOptions::Format;
    line.env.format = line.json       ? Format::Json
                      : line.markdown ? Format::Markdown
                      : line.man      ? Format::Man
                      : line.conf     ? Format::Conf
                                      : Format::Human;
    return env(line.env);
}

int dispatch(CommandLine& line) {
    const std::vector<CLI::App*> chosen = line.app.get_subcommands();
    if (line.version && chosen.empty() && line.app.remaining_size() == 0) {
        return show_version(line.library);
    }
    if (chosen.empty()) {
        return no_command(line);
    }
    const CLI::App& command = *chosen.front();
    const std::vector<std::string> extra = line.app.remaining(true);
    if (!extra.empty()) {
        return unexpected(command, command.get_name(), extra.front());
    }
    if (&command == line.version_command) {
        return show_version(line.library);
    }
    if (&command == line.completion_command) {
        return print(completion_text(line.app, line.shell));
    }
    if (&command == line.help_command) {
        return help(line, chosen);
    }
    if (&command == line.run_command) {
        line.run.library = line.library;
        return line.run.dry_run ? dry_run(line.run) : run(line.run);
    }
    if (&command == line.report_command) {
        return report(line.report);
    }
    if (&command == line.topo_command) {
        return topo(line.topo);
    }
    if (line.doctor.owns(&command)) {
        return line.doctor.run(&command);
    }
    if (&command == line.probe.probe) {
        return probe_command(line.probe.options);
    }
    if (&command == line.top.top) {
        return line.top.run();
    }
    if (line.planner.owns(&command)) {
        return line.planner.run(&command);
    }
    return env(line);
}

int main_guarded(int argc, char** argv) {
    CommandLine line;
    std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    line.run.command = take_command(*line.run_command, arguments, true);
    line.env.command = take_command(*line.env_command, arguments, false);
    for (const auto& [command, operands] :
         {std::pair(line.doctor.doctor, false), std::pair(line.doctor.which_nccl, true)}) {
        std::vector<std::string> words = take_command(*command, arguments, operands);
        if (!words.empty()) {
            line.doctor.options.command = std::move(words);
        }
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    try {
        line.app.parse(arguments);
    } catch (const CLI::CallForHelp&) {
        return print(line.app.help());
    } catch (const CLI::ParseError& error) {
        complain(std::string(error.what()) + "; see --help");
        return kUsage;
    }
    return dispatch(line);
}

}  // namespace
}  // namespace deft::tools

int main(int argc, char** argv) {
    try {
        return deft::tools::main_guarded(argc, argv);
    } catch (const std::exception& error) {
        deft::tools::complain(error.what());
        return deft::tools::kProblem;
    }
}
