// SPDX-License-Identifier: Apache-2.0
// The three profiles the acceptance tables are given for: F + B = 1, B = 2F, cost proportional to
// bytes with coverage rate CR on the first link.
#pragma once

#include <string>
#include <vector>

#include "planner/model/model.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner::testing {

struct Shape {
    const char* name;
    std::vector<double> parameters;  // input side first
    std::vector<double> flops;
};

inline Shape vgg16_shape() {
    Shape shape{"VGG-16", {}, {}};
    for (const Layer& layer : make_model("vgg16").layers) {
        double parameters = 0;
        for (const std::uint64_t tensor : layer.tensors) {
            parameters += static_cast<double>(tensor);
        }
        shape.parameters.push_back(parameters);
        shape.flops.push_back(layer.flops);
    }
    return shape;
}

// The tied embedding comes last and computes nothing; the head computes and owns nothing.
inline Shape gpt2_shape() {
    Shape shape{"GPT-2 small", {}, {}};
    constexpr double kH = 768;
    shape.parameters.push_back(51281 * kH);
    shape.flops.push_back(0);
    for (int i = 0; i < 12; ++i) {
        shape.parameters.push_back(12 * kH * kH + 13 * kH);
        shape.flops.push_back(12 * kH * kH + 13 * kH);
    }
    shape.parameters.push_back(0);
    shape.flops.push_back(50257 * kH);
    return shape;
}

inline Shape equal_shape(std::size_t layers) {
    return {"equal", std::vector<double>(layers, 1), std::vector<double>(layers, 1)};
}

inline Profile profile_of(const Shape& shape) {
    double bytes = 0;
    double flops = 0;
    for (std::size_t i = 0; i < shape.flops.size(); ++i) {
        bytes += shape.parameters[i];
        flops += shape.flops[i];
    }
    Profile profile;
    profile.name = shape.name;
    double ready = 0;
    for (std::size_t i = shape.flops.size(); i-- > 0;) {
        const double forward = shape.flops[i] / flops / 3;
        ready += 2 * forward;
        if (shape.parameters[i] > 0) {
            Bucket bucket;
            // About 2^40 bytes in all: rounding to whole bytes is below 1e-11.
            bucket.bytes = static_cast<std::uint64_t>(shape.parameters[i] / bytes * 0x1p40);
            bucket.ready = ready;
            bucket.forward = forward;
            profile.buckets.push_back(bucket);
        }
    }
    profile.forward = 1.0 / 3;
    profile.backward = 2.0 / 3;
    profile.buckets.back().ready = std::min(ready, profile.backward);
    return profile;
}

inline Fabric fabric_of(double coverage, const std::vector<double>& slowdowns) {
    Fabric fabric;
    for (std::size_t j = 0; j < slowdowns.size(); ++j) {
        fabric.links.push_back(line("link" + std::to_string(j), 0x1p40 / coverage / slowdowns[j]));
    }
    return fabric;
}

}  // namespace deft::planner::testing
