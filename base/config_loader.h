// SPDX-License-Identifier: Apache-2.0
// Puts the settings of a job together: defaults, files, environment, then what is forced and
// capped. For Config alone.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/config_file.h"
#include "base/job_identity.h"

namespace deft {

class ConfigLoader {
public:
    // Reads the files. `environment` has to stay.
    ConfigLoader(const JobIdentity& job, std::span<const char* const> environment,
                 const std::string& system_file);

    Config load() const;

    // The lines of the system file that `config` has these texts from count for nothing at the next
    // load(). False: there is none.
    bool drop_wrong_texts(const Config& config, const std::vector<TextProblem>& problems);

private:
    // Of a name or a value; `line` is empty where there is none.
    struct Fault {
        bool unknown = false;  // the name
        std::string line;
    };
    struct Refused {
        const ConfigLine* line;
        Fault fault;
    };
    struct Dropped {
        std::string origin;
        Key key;
        std::string problem;
    };

    Config attempt(bool with_system) const;
    std::vector<Refused> apply_all(const std::vector<ConfigLine>& lines, ConfigLine::Kind kind,
                                   ValueSource source, Config& config) const;
    void apply_system(ConfigLine::Kind kind, Config& config) const;
    void apply_user(ConfigLine::Kind kind, Config& config) const;
    void apply_environment(Config& config) const;
    static Fault apply(const ConfigLine& line, ValueSource source, Config& config);
    static Fault assign(std::string_view name, std::string_view value, ValueSource source,
                        const std::string& origin, Config& config);
    static Fault force(const ConfigLine& line, ValueSource source, Config& config);
    static Fault cap(const ConfigLine& line, Config& config);
    void draw_canary(Config& config) const;
    bool dropped(const ConfigLine& line) const;

    std::span<const char* const> environment_;
    JobIdentity::Id launched_as_;
    ConfigFile system_;
    std::optional<ConfigFile> user_;
    std::vector<Dropped> dropped_;
};

}  // namespace deft
