// SPDX-License-Identifier: Apache-2.0
// `deft advise --curve`: the benefit of each kind of help over a job's ratio of compute to
// communication, as a table and as a picture.
#pragma once

#include <string>
#include <vector>

#include "planner/benefit_curve.h"

namespace deft::tools {

struct BenefitPicture {
    std::string title;
    planner::BenefitBounds bounds;
    planner::BenefitPoint here;  // the job as it is
    std::vector<planner::BenefitPoint> curve;
    double max_merge = 1;
};

// Where this job stands, its gain split into what deft can give and what nobody can, the curve.
std::string benefit_table(const BenefitPicture& picture);
// Below each other in one drawing.
std::string benefit_svg(const std::vector<BenefitPicture>& pictures);

}  // namespace deft::tools
