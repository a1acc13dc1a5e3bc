// SPDX-License-Identifier: Apache-2.0
// Profiles from model formulas: parameter tensors, compute, PyTorch DDP's bucket rule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/model/profile.h"

namespace deft::planner {

struct Layer {
    std::string name;
    std::vector<std::uint64_t> tensors;  // parameters of each, in registration order
    double flops = 0;                    // forward, per sample (images) or token
    bool input = false;                  // backward needs no gradient of its input: 1x, not 2x
    // Weights shared with a layer at the output (tied embedding): the gradient is complete only
    // when this layer's backward is.
};

// Layers in registration order, which is forward order except for a tied head: the head's compute
// is a layer without tensors at the end.
struct Model {
    std::string name;
    std::string source;
    std::vector<Layer> layers;
    std::uint32_t bytes_per_parameter = 4;
    double samples = 0;     // default batch per GPU, images or tokens
    double efficiency = 0;  // fraction of peak a training step reaches
    bool images = false;

    std::uint64_t parameters() const;
    std::size_t tensors() const;
};

const std::vector<std::string>& model_names();
// Throws std::invalid_argument for an unknown name.
Model make_model(std::string_view name);

struct ModelRun {
    double samples = 0;          // per GPU and iteration; 0: the model's default
    double peak_flops = 312e12;  // A100, dense bf16
    double efficiency = 0;       // 0: the model's default
    double seconds = 0;          // compute of one iteration, if measured; replaces the three above
    std::uint64_t first_bucket = 1ULL << 20;  // DDP: bytes at which the first bucket closes
    std::uint64_t bucket = 25ULL << 20;       // and all others; 1: every tensor alone
    bool one_per_layer = false;               // a bucket for each layer instead
};

// Backward takes twice the forward; walking the tensors in reverse registration order, a bucket is
// closed when it holds at least its limit; tensors are never cut.
Profile model_profile(const Model& model, const ModelRun& run = {});

}  // namespace deft::planner
