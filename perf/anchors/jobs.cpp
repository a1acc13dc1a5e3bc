// SPDX-License-Identifier: Apache-2.0
#include "perf/anchors/jobs.h"

#include <array>
#include <string>

#include "planner/model/model.h"

namespace deft::anchors {
namespace {

using planner::Layer;
using planner::Model;

// An optimizer as the kernels it starts for each tensor, and how often those pass over the
// parameters in memory. ResNet-50: SGD without momentum. BERT: AdamW of the transformers library
// (mul, add, mul, addcmul, sqrt, add, addcdiv).
struct Optimizer {
    double launches;
    double passes;
};
constexpr Optimizer kSgd = {1, 3};
constexpr Optimizer kAdamW = {7, 17};
constexpr double kMemoryRate = 550e9;  // of an RTX 2080 Ti, whose line is 616 GB/s

// PyTorch's layer norms, residuals and dropouts take about a tenth of a transformer layer. The
// figures of README.md move by half a point where this is 0 or a fifth.
constexpr double kElementwise = 0.1;
constexpr double kSequence = 64;         // tokens
constexpr std::uint64_t kWords = 30528;  // padded to a multiple of 8

Layer layer(std::string name, std::vector<std::uint64_t> tensors, double flops) {
    Layer made;
    made.name = std::move(name);
    made.tensors = std::move(tensors);
    made.flops = flops;
    return made;
}

// One layer of the encoder as its modules, whose gradients become ready one after the other.
void add_encoder_layer(Model& model, std::uint64_t h) {
    const double square = 2.0 * static_cast<double>(h * h);
    const double attention = 4 * kSequence * static_cast<double>(h);
    const double rest = kElementwise / (1 - kElementwise) * (12 * square + attention);
    const std::string name = "layer";
    for (const char* projection : {".query", ".key", ".value"}) {
        model.layers.push_back(layer(name + projection, {h * h, h}, square));
    }
    model.layers.push_back(layer(name + ".output", {h * h, h}, square + attention));
    model.layers.push_back(layer(name + ".norm", {h, h}, rest / 2));
    model.layers.push_back(layer(name + ".up", {4 * h * h, 4 * h}, 4 * square));
    model.layers.push_back(layer(name + ".down", {4 * h * h, h}, 4 * square));
    model.layers.push_back(layer(name + ".norm", {h, h}, rest / 2));
}

// BertForPreTraining: the heads count. The vocabulary's product is a fifth of BERT-base's compute,
// and no layer's gradient is ready before it has run backward.
Model bert_with_heads(const char* name, int depth, std::uint64_t h) {
    Model model = planner::make_model(name);
    Layer embedding = model.layers.front();
    Layer pooler = model.layers.back();
    embedding.tensors[0] = kWords * h;
    pooler.flops = 2.0 * static_cast<double>(h * h) / kSequence;
    model.layers = {embedding};
    for (int i = 0; i < depth; ++i) {
        add_encoder_layer(model, h);
    }
    const double wide = static_cast<double>(h);
    model.layers.push_back(pooler);
    model.layers.push_back(layer("transform", {h * h, h, h, h}, 2 * wide * wide));
    model.layers.push_back(
        layer("decoder (tied)", {kWords}, 2 * static_cast<double>(kWords) * wide));
    model.layers.push_back(layer("next sentence", {2 * h, 2}, 4 * wide / kSequence));
    return model;
}

Job make_job(int index) {
    constexpr int kDepth[kModels] = {0, 12, 24};
    constexpr std::uint64_t kHidden[kModels] = {0, 768, 1024};
    const bool images = index == 0;
    const Model model = images ? planner::make_model(kModelNames[index])
                               : bert_with_heads(kModelNames[index], kDepth[index], kHidden[index]);
    const Optimizer optimizer = images ? kSgd : kAdamW;
    Job made;
    made.optimizer = optimizer.passes * 4 * static_cast<double>(model.parameters()) / kMemoryRate;
    made.launches = optimizer.launches * static_cast<double>(model.tensors());
    // ResNet-50: convolutions, batch norms, the last layer. BERT: embeddings 4, 8 a layer, pooler,
    // heads 5.
    made.modules = images ? 107 : 10 + 8.0 * kDepth[index];
    planner::ModelRun run;
    run.seconds = one_gpu_seconds(index) - made.optimizer;
    run.first_bucket = run.bucket = 1;
    made.tensors = planner::model_profile(model, run);
    return made;
}

}  // namespace

const Job& job(int model) {
    static const std::array<Job, kModels> kJobs = {make_job(0), make_job(1), make_job(2)};
    return kJobs[static_cast<std::size_t>(model)];
}

}  // namespace deft::anchors
