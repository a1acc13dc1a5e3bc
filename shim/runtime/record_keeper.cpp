// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/record_keeper.h"

#include <cerrno>
#include <cstring>

#include "base/config.h"
#include "base/job_folder.h"
#include "base/log.h"
#include "base/random.h"
#include "base/record_pattern.h"
#include "shim/runtime/record_file.h"

namespace deft {
namespace {

// Looked up once: a job may change its working folder.
const std::string& pattern() {
    static const auto& found = *new std::string([] {
        std::string where = record_pattern(Config::process());
        if (where != Config::process().text(Key::Out)) {
            DEFT_INFO(
                "the working folder is on a network file system: records go to %s. Name a "
                "file with DEFT_OUT to have them elsewhere",
                where.c_str());
        }
        return where;
    }());
    return found;
}

}  // namespace

bool keeps_records() {
    const Config& config = Config::process();
    return config.is(Key::Mode, "observe") ||
           config.setting(Key::Out).source != ValueSource::Default;
}

bool RecordKeeper::put(ReportFacts& facts, const Track* track) {
    while (writer_ == 0 && random_bytes(&writer_, sizeof(writer_))) {
    }
    facts.writer = writer_;
    const Config& config = Config::process();
    const std::string path = in_job_folder(expand_pattern(pattern(), facts.rank, config.job_id()));
    const bool named = config.setting(Key::Out).source != ValueSource::Default;
    const Earlier earlier = path == path_ ? Earlier::Look
                            : named       ? Earlier::Replace
                                          : Earlier::Keep;
    const int error = put_record(path, {facts.rank, writer_, make_report(facts, track)}, earlier,
                                 facts.job.started_ns);
    if (error == EWOULDBLOCK) {
        return false;
    }
    if (error != 0) {
        DEFT_WARN_ONCE(
            "cannot write the report %s: %s; the job goes on. Name a file that can be "
            "written with DEFT_OUT",
            path.c_str(),
            error == kNotAFile ? "there is something that is no file" : std::strerror(error));
        return true;
    }
    if (!path_.empty() && path_ != path) {
        drop_record(path_, writer_);  // a larger communicator has given this rank another number
    }
    path_ = path;
    return true;
}

}  // namespace deft
