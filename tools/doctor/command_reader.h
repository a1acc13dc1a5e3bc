// SPDX-License-Identifier: Apache-2.0
// Reads a command: wrappers and programs in command_facts.cpp, scripts in command_scripts.cpp.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tools/doctor/command_facts.h"
#include "tools/doctor/script_text.h"

namespace deft::tools::doctor {

class CommandReader {
public:
    using Words = std::vector<std::string>;

    explicit CommandReader(const Environment& environment)
        : job_{{}, environment, {}, "", "", false} {}

    void read(const Words& words) {
        job_.command.words = words;
        process(words, "", 0, true);
    }
    Job take() { return std::move(job_); }

private:
    static constexpr int kDeepest = 6;  // scripts that start scripts

    Job job_;
    std::set<std::string> scanned_;
    bool captured_ = false;          // what the command prints is a value of the script's
    std::set<std::string> unknown_;  // variables to which a script gives a value that it computes

    void process(Words words, const std::string& from, int depth, bool likely);
    void process_program(const Words& words, const std::string& from, int depth, bool likely);
    Words behind_deft_run(const Words& words);
    void process_python(const Words& words, int depth);
    void process_shell(const Words& words, int depth);
    void process_operands(const Words& words, int depth);
    void scan(const std::string& file, int depth);
    void scan_operand(const std::string& file, int depth);
    void note_script(const std::string& launcher, const std::string& file);
    void scan_shell(const std::string& file, const std::string& text, const Words& first,
                    int depth);
    void note_resets(const Words& words, const Words& assignments, const std::string& from);
    void note_container(const Words& words, const std::string& from, bool likely);
    void note_wrapper(const Words& words, const Words& inner, const std::string& from, bool likely);
    bool loses(const Words& words, const std::string& from, bool likely);
    void take_lines(ScriptText& script, const std::string& file, bool python);
    void run_commands(const ScriptText& script, const std::string& file, int depth);
    void set(const std::string& assignment, const std::string& from);
};

}  // namespace deft::tools::doctor
