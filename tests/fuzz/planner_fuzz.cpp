// SPDX-License-Identifier: Apache-2.0
// What `deft plan`, `deft sim`, `deft advise` and `deft report` read: the first byte picks the
// reader, the rest is the file. A file is refused with an InputError (a JsonError for plans) that
// names it, or what was read can be planned with.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "planner/model/collective.h"
#include "planner/model/plan_json.h"
#include "planner/simulator/check.h"
#include "planner/solver/bounds.h"
#include "tools/observe_file.h"
#include "tools/planner/fields.h"
#include "tools/planner/links_reader.h"
#include "tools/planner/profile_reader.h"

using namespace deft;

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

void read_profile(const std::string& text) {
    const planner::Profile profile = tools::profile_from_text("f", text);
    require(profile.problem().empty());
    require(std::isfinite(profile.compute()));
    // What is written can be read again.
    tools::profile_from_text("f", tools::profile_to_json(profile).dump());
}

void expect_sound(const planner::Fabric& fabric) {
    require(fabric.problem().empty());
    require(fabric.merged().problem().empty());
    for (const planner::Link& link : fabric.links) {
        require(link.seconds(1e6) >= 0);
    }
}

// Whatever a plan says, checking it against a job ends, and gives reasons to refuse it.
void check(const planner::Plan& plan) {
    planner::Profile profile;
    profile.forward = 0.1;
    profile.backward = 0.2;
    for (std::size_t i = 0; i < plan.bucket_bytes.size() && i < 64; ++i) {
        planner::Bucket bucket;
        bucket.bytes = plan.bucket_bytes[i];
        bucket.ready = 0.2;
        profile.buckets.push_back(bucket);
    }
    if (!profile.problem().empty()) {
        return;
    }
    planner::Fabric fabric;
    for (std::size_t i = 0; i < plan.links.size() && i < 8; ++i) {
        fabric.links.push_back(planner::ring_link(plan.links[i], 4, 1e-5, 1e9));
    }
    if (fabric.problem().empty()) {
        check_plan(plan, profile, fabric, {});
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
    try {
        switch (data[0] % 8) {
            case 0:
                read_profile(text);
                break;
            case 1:
                expect_sound(tools::links_from_json("f", tools::parse_json("f", text), 16));
                break;
            case 2:
                tools::inflate("f", text, 1 << 20);
                break;
            case 5:
                tools::parse_observe_file("f", text);
                break;
            case 4:
                expect_sound(tools::links_from_toml("f", text, 16));
                break;
            default: {
                const planner::Plan plan = planner::plan_from_json(text);
                check(plan);
                require(planner::plan_from_json(planner::plan_to_json(plan)) == plan);
            }
        }
    } catch (const tools::InputError& error) {
        require(std::string(error.what()).find('f') != std::string::npos);
    } catch (const JsonError&) {
    } catch (const std::runtime_error& error) {  // of reports
        require(std::string(error.what()).starts_with("f: "));
    }
    return 0;
}
