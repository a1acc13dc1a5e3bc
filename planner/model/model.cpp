// SPDX-License-Identifier: Apache-2.0
#include "planner/model/model.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace deft::planner {
namespace {

using U64 = std::uint64_t;

Model vgg(std::string name, const std::vector<std::vector<U64>>& stages) {
    Model model;
    model.name = std::move(name);
    model.source = "Simonyan, Zisserman 2014";
    model.samples = 64;
    model.efficiency = 0.2;
    model.images = true;
    U64 in = 3;
    double size = 224;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        for (const U64 out : stages[stage]) {
            Layer layer;
            layer.name = "conv" + std::to_string(model.layers.size());
            layer.tensors = {9 * in * out, out};
            layer.flops = 2.0 * 9 * static_cast<double>(in * out) * size * size;
            layer.input = model.layers.empty();
            model.layers.push_back(layer);
            in = out;
        }
        size /= 2;
    }
    const U64 widths[] = {25088, 4096, 4096, 1000};
    for (int i = 0; i < 3; ++i) {
        Layer layer;
        layer.name = "fc" + std::to_string(6 + i);
        layer.tensors = {widths[i] * widths[i + 1], widths[i + 1]};
        layer.flops = 2.0 * static_cast<double>(widths[i] * widths[i + 1]);
        model.layers.push_back(layer);
    }
    return model;
}

Model resnet(std::string name, const std::vector<int>& blocks) {
    Model model;
    model.name = std::move(name);
    model.source = "He et al. 2015, stride in the 3x3 convolution";
    model.samples = 64;
    model.efficiency = 0.2;
    model.images = true;
    const auto conv = [&](const std::string& at, U64 in, U64 out, U64 kernel, double size) {
        Layer layer;
        layer.name = at;
        layer.tensors = {in * out * kernel * kernel, out, out};  // and its batch norm
        layer.flops = 2.0 * static_cast<double>(layer.tensors[0]) * size * size;
        layer.input = model.layers.empty();
        model.layers.push_back(layer);
    };
    conv("conv1", 3, 64, 7, 112);
    U64 in = 64;
    double size = 56;
    for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
        const U64 width = U64{64} << stage;
        const double out_size = stage == 0 ? size : size / 2;
        for (int block = 0; block < blocks[stage]; ++block) {
            const std::string at =
                "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
            conv(at + ".conv1", in, width, 1, block == 0 ? size : out_size);
            conv(at + ".conv2", width, width, 3, out_size);
            conv(at + ".conv3", width, 4 * width, 1, out_size);
            if (block == 0) {
                conv(at + ".downsample", in, 4 * width, 1, out_size);
            }
            in = 4 * width;
        }
        size = out_size;
    }
    Layer fc;
    fc.name = "fc";
    fc.tensors = {2048 * 1000, 1000};
    fc.flops = 2.0 * 2048 * 1000;
    model.layers.push_back(fc);
    return model;
}

// Adds a layer whose weights are all matrix-multiplied: 2 flops per parameter and token.
void dense(Model& model, std::string name, std::vector<U64> tensors, double more_flops = 0) {
    Layer layer;
    layer.name = std::move(name);
    layer.tensors = std::move(tensors);
    layer.flops = 2.0 * static_cast<double>(
                            std::accumulate(layer.tensors.begin(), layer.tensors.end(), U64{0})) +
                  more_flops;
    model.layers.push_back(std::move(layer));
}

Model bert(std::string name, U64 depth, U64 h) {
    constexpr double kSequence = 128;
    Model model;
    model.name = std::move(name);
    model.source = "Devlin et al. 2018, with pooler";
    model.samples = 32 * kSequence;
    model.efficiency = 0.4;
    Layer embedding;  // look-ups: no matrix product
    embedding.name = "embeddings";
    embedding.tensors = {30522 * h, 512 * h, 2 * h, h, h};
    embedding.input = true;
    model.layers.push_back(embedding);
    for (U64 i = 0; i < depth; ++i) {
        dense(model, "layer." + std::to_string(i),
              {h * h, h, h * h, h, h * h, h, h * h, h, h, h, 4 * h * h, 4 * h, 4 * h * h, h, h, h},
              4 * kSequence * static_cast<double>(h));
    }
    dense(model, "pooler", {h * h, h});
    model.layers.back().flops /= kSequence;  // one token of each sequence
    return model;
}

Model gpt2(std::string name, U64 depth, U64 h) {
    constexpr double kSequence = 1024;
    Model model;
    model.name = std::move(name);
    model.source = "Radford et al. 2019, head tied to the embedding";
    model.samples = 4 * kSequence;
    model.efficiency = 0.4;
    Layer embedding;
    embedding.name = "wte, wpe";
    embedding.tensors = {50257 * h, 1024 * h};
    embedding.input = true;
    model.layers.push_back(embedding);
    for (U64 i = 0; i < depth; ++i) {
        dense(model, "h." + std::to_string(i),
              {h, h, 3 * h * h, 3 * h, h * h, h, h, h, 4 * h * h, 4 * h, 4 * h * h, h},
              4 * kSequence * static_cast<double>(h));
    }
    dense(model, "ln_f", {h, h});
    Layer head;
    head.name = "head (tied)";
    head.flops = 2.0 * 50257 * static_cast<double>(h);
    model.layers.push_back(head);
    return model;
}

Model llama(std::string name, U64 depth, U64 h, U64 ffn, U64 vocabulary, U64 kv, bool tied,
            std::uint32_t bytes) {
    constexpr double kSequence = 2048;
    Model model;
    model.name = std::move(name);
    model.source = tied ? "tied head" : "untied head";
    model.bytes_per_parameter = bytes;
    model.samples = 4 * kSequence;
    model.efficiency = 0.4;
    Layer embedding;
    embedding.name = "embed_tokens";
    embedding.tensors = {vocabulary * h};
    embedding.input = true;
    model.layers.push_back(embedding);
    for (U64 i = 0; i < depth; ++i) {
        dense(model, "layers." + std::to_string(i),
              {h * h, kv * h, kv * h, h * h, h * ffn, h * ffn, ffn * h, h, h},
              4 * kSequence * static_cast<double>(h));
    }
    dense(model, "norm", {h});
    Layer head;
    head.name = "lm_head";
    head.flops = 2.0 * static_cast<double>(vocabulary * h);
    if (!tied) {
        head.tensors = {vocabulary * h};
    }
    model.layers.push_back(head);
    return model;
}

struct Entry {
    const char* name;
    Model (*make)();
};

const Entry kModels[] = {
    {"vgg16",
     [] {
         return vgg("VGG-16",
                    {{64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}});
     }},
    {"vgg19",
     [] {
         return vgg("VGG-19", {{64, 64},
                               {128, 128},
                               {256, 256, 256, 256},
                               {512, 512, 512, 512},
                               {512, 512, 512, 512}});
     }},
    {"resnet50",
     [] {
         return resnet("ResNet-50", {3, 4, 6, 3});
     }},
    {"resnet101",
     [] {
         return resnet("ResNet-101", {3, 4, 23, 3});
     }},
    {"bert-base", [] { return bert("BERT-base", 12, 768); }},
    {"bert-large", [] { return bert("BERT-large", 24, 1024); }},
    {"gpt2", [] { return gpt2("GPT-2 small", 12, 768); }},
    {"gpt2-medium", [] { return gpt2("GPT-2 medium", 24, 1024); }},
    {"gpt2-large", [] { return gpt2("GPT-2 large", 36, 1280); }},
    {"gpt2-xl", [] { return gpt2("GPT-2 XL", 48, 1600); }},
    {"tinyllama-1.1b",
     [] { return llama("TinyLlama-1.1B", 22, 2048, 5632, 32000, 256, false, 4); }},
    {"llama-3.2-1b", [] { return llama("Llama-3.2-1B", 16, 2048, 8192, 128256, 512, true, 4); }},
    {"llama-2-7b", [] { return llama("Llama-2-7B", 32, 4096, 11008, 32000, 4096, false, 2); }},
};

}  // namespace

std::uint64_t Model::parameters() const {
    U64 sum = 0;
    for (const Layer& layer : layers) {
        sum = std::accumulate(layer.tensors.begin(), layer.tensors.end(), sum);
    }
    return sum;
}

std::size_t Model::tensors() const {
    std::size_t count = 0;
    for (const Layer& layer : layers) {
        count += layer.tensors.size();
    }
    return count;
}

const std::vector<std::string>& model_names() {
    static const std::vector<std::string> kNames = [] {
        std::vector<std::string> names;
        for (const Entry& entry : kModels) {
            names.emplace_back(entry.name);
        }
        return names;
    }();
    return kNames;
}

Model make_model(std::string_view name) {
    for (const Entry& entry : kModels) {
        if (name == entry.name) {
            return entry.make();
        }
    }
    throw std::invalid_argument("no model is called \"" + std::string(name) + "\"");
}

namespace {

// Puts the tensors of layers, in backward's order, into buckets.
class BucketFiller {
public:
    BucketFiller(const Model& model, const ModelRun& run)
        : run_(run), bytes_per_parameter_(model.bytes_per_parameter), limit_(run.first_bucket) {
        profile_.name = model.name;
        profile_.source = "model";
    }

    // All tensors of a layer are there when its backward is. Its forward needs all buckets that
    // hold one of them; forward visits buckets from the last to the first, so it belongs to the
    // first.
    void add(const Layer& layer, double per_flop) {
        const double forward = layer.flops * per_flop;
        profile_.forward += forward;
        now_ += layer.input ? forward : 2 * forward;
        for (std::size_t k = layer.tensors.size(); k-- > 0;) {
            add_tensor(layer, layer.tensors[k]);
            if (k + 1 == layer.tensors.size()) {
                first_ = filled_;
            }
        }
        if (run_.one_per_layer) {
            open_ = false;
        }
        // Before the first bucket nobody owns a layer without tensors: it runs after all others in
        // forward.
        if (layer.tensors.empty() && !profile_.buckets.empty()) {
            first_ = profile_.buckets.size() - 1;
        }
        if (!profile_.buckets.empty()) {
            profile_.buckets[first_].forward += forward;
        }
    }

    Profile profile() {
        profile_.backward = now_;
        return std::move(profile_);
    }

private:
    void add_tensor(const Layer& layer, U64 parameters) {
        if (!open_) {
            profile_.buckets.emplace_back();
            open_ = true;
            profile_.buckets.back().name = layer.name;
        }
        filled_ = profile_.buckets.size() - 1;
        Bucket& bucket = profile_.buckets.back();
        bucket.bytes += parameters * bytes_per_parameter_;
        bucket.ready = now_;
        if (!run_.one_per_layer && bucket.bytes >= limit_) {
            open_ = false;
            limit_ = run_.bucket;
        }
    }

    const ModelRun& run_;
    const U64 bytes_per_parameter_;
    U64 limit_;
    bool open_ = false;       // the last bucket takes more
    std::size_t filled_ = 0;  // bucket of the last tensor
    std::size_t first_ = 0;   // bucket of the layer's first one
    double now_ = 0;
    Profile profile_;
};

}  // namespace

Profile model_profile(const Model& model, const ModelRun& run) {
    const double samples = run.samples > 0 ? run.samples : model.samples;
    const double efficiency = run.efficiency > 0 ? run.efficiency : model.efficiency;
    double work = 0;  // of an iteration, in forward flops per sample
    for (const Layer& layer : model.layers) {
        work += layer.flops * (layer.input ? 2 : 3);
    }
    const double per_flop =
        run.seconds > 0 ? run.seconds / work : samples / (efficiency * run.peak_flops);

    BucketFiller filler(model, run);
    for (std::size_t l = model.layers.size(); l-- > 0;) {
        filler.add(model.layers[l], per_flop);
    }
    return filler.profile();
}

}  // namespace deft::planner
