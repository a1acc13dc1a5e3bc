// SPDX-License-Identifier: Apache-2.0
#include "tools/completion.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

#include "base/config.h"

namespace deft::tools {
namespace {

struct Flag {
    std::string name;  // without the dashes
    std::string text;
    std::string values;  // separated by blanks; empty: any
    bool takes_value = false;
};

struct Command {
    std::string name, text;
    std::vector<Flag> flags;
};

// The words that a setting's table allows.
std::string choices(Key key) {
    std::string words = variable(key).range;
    for (char& letter : words) {
        letter = letter == '|' ? ' ' : letter;
    }
    return words;
}

// One line without what a shell reads as its own.
std::string plain(std::string_view text) {
    std::string line;
    for (const char letter : text.substr(0, text.find('\n'))) {
        const bool own = std::string_view("'\"`$\\[]:").find(letter) != std::string_view::npos;
        line += own ? ' ' : letter;
    }
    return line;
}

std::vector<Flag> flags_of(const CLI::App& app) {
    std::vector<Flag> flags;
    for (const CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) {
            Flag flag{name, plain(option->get_description()), "",
                      option->get_items_expected_max() > 0};
            if (name == "mode" && flag.takes_value) {
                flag.values = choices(Key::Mode);
            } else if (name == "log" && flag.takes_value) {
                flag.values = choices(Key::Log);
            }
            flags.push_back(std::move(flag));
        }
    }
    return flags;
}

std::vector<Command> commands_of(const CLI::App& app) {
    std::vector<Command> commands;
    for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
        commands.push_back({each->get_name(), plain(each->get_description()), flags_of(*each)});
        if (each->get_name() == "completion") {
            commands.back().flags.clear();
        }
    }
    return commands;
}

std::string words_of(const std::vector<Flag>& flags) {
    std::string words;
    for (const Flag& flag : flags) {
        words += (words.empty() ? "--" : " --") + flag.name;
    }
    return words;
}

std::string bash(const CLI::App& app) {
    std::string names = words_of(flags_of(app));
    std::string cases;
    for (const Command& command : commands_of(app)) {
        names += " " + command.name;
        const std::string words =
            command.name == "completion" ? std::string("bash zsh fish") : words_of(command.flags);
        cases += fmt::format("        {}) words='{}' ;;\n", command.name, words);
    }
    return fmt::format(R"(# SPDX-License-Identifier: Apache-2.0
# Written by `deft completion bash`.
_deft() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} words='' word
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [ "$word" != -- ] || return 0
    done
    case $before in
        --mode) COMPREPLY=($(compgen -W '{}' -- "$current")); return 0 ;;
        --log) COMPREPLY=($(compgen -W '{}' -- "$current")); return 0 ;;
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{}' -- "$current"))
        return 0
    fi
    case ${{COMP_WORDS[1]}} in
{}    esac
    case $current in
        -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
        *) [ "${{COMP_WORDS[1]}}" != completion ] ||
            COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    esac
}}
complete -o default -F _deft deft
)",
                       choices(Key::Mode), choices(Key::Log), names, cases);
}

std::string zsh(const CLI::App& app) {
    std::string list;
    std::string cases;
    for (const Command& command : commands_of(app)) {
        list += fmt::format("    '{}:{}'\n", command.name, command.text);
        std::string arguments;
        for (const Flag& flag : command.flags) {
            const std::string value = !flag.takes_value     ? std::string()
                                      : flag.values.empty() ? ":value:_files"
                                                            : ":value:(" + flag.values + ")";
            arguments += fmt::format(" '--{}[{}]{}'", flag.name, flag.text, value);
        }
        if (command.name == "completion") {
            arguments += " '1:shell:(bash zsh fish)'";
        }
        cases +=
            fmt::format("    {}) _arguments{} '*::command:_normal' ;;\n", command.name, arguments);
    }
    return fmt::format(R"(#compdef deft
# SPDX-License-Identifier: Apache-2.0
# Written by `deft completion zsh`.
local -a commands
commands=(
{})
if (( CURRENT == 2 )); then
    _describe command commands
    return
fi
local command=$words[2]
shift words
(( CURRENT-- ))
case $command in
{}esac
)",
                       list, cases);
}

std::string fish(const CLI::App& app) {
    std::string text =
        "# SPDX-License-Identifier: Apache-2.0\n# Written by `deft completion fish`.\n";
    for (const Command& command : commands_of(app)) {
        text += fmt::format("complete -c deft -n __fish_use_subcommand -f -a {} -d '{}'\n",
                            command.name, command.text);
        for (const Flag& flag : command.flags) {
            std::string value = flag.takes_value ? " -r" : "";
            if (!flag.values.empty()) {
                value += " -f -a '" + flag.values + "'";
            }
            text += fmt::format(
                "complete -c deft -n '__fish_seen_subcommand_from {}' -l {}{} -d '{}'\n",
                command.name, flag.name, value, flag.text);
        }
        if (command.name == "completion") {
            text +=
                "complete -c deft -n '__fish_seen_subcommand_from completion' -f -a "
                "'bash zsh fish'\n";
        }
    }
    return text;
}

}  // namespace

std::string completion_text(const CLI::App& app, const std::string& shell) {
    return shell == "bash" ? bash(app) : shell == "zsh" ? zsh(app) : fish(app);
}

}  // namespace deft::tools
