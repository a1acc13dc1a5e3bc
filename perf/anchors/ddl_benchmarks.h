// SPDX-License-Identifier: Apache-2.0
// HKBU-HPML ddl-benchmarks, 29 May 2020 (paper: arXiv 2005.13247): samples per second, batch 64 per
// GPU, 4 GPUs per node, all methods with NCCL all-reduce. Numbers only.
#pragma once

#include <array>

namespace deft::anchors {

inline constexpr int kModels = 2;
inline constexpr int kLinks = 2;
inline constexpr int kMethods = 4;
inline constexpr int kSizes = 3;

inline constexpr double kBatch = 64;
inline constexpr int kGpus[kSizes] = {8, 16, 32};
inline constexpr const char* kModelNames[kModels] = {"resnet50", "bert-base"};
inline constexpr const char* kLinkNames[kLinks] = {"10GbE", "100Gb IB"};
// BSP: all-reduce after backward; WFBP: a message per tensor, overlapped; MG-WFBP: merged;
// BS: ByteScheduler.
inline constexpr const char* kMethodNames[kMethods] = {"BSP", "WFBP", "MG-WFBP", "BS"};
inline constexpr int kMgWfbp = 2;
inline constexpr int kByteScheduler = 3;
inline constexpr double kOneGpu[kModels] = {253.1, 212.8};

// [model][link][method][size]
inline constexpr double kThroughput[kModels][kLinks][kMethods][kSizes] = {
    {{{1282.28, 2485.12, 4920.82},
      {1795.74, 3146.78, 5113.18},
      {1980.58, 3784.98, 6883.60},
      {1319.10, 2701.52, 4754.26}},
     {{1821.20, 3602.90, 7126.52},
      {2017.12, 3946.06, 7326.56},
      {2001.72, 3987.40, 7876.46},
      {1257.66, 2529.14, 4766.38}}},
    {{{518.94, 984.88, 1926.64},
      {582.26, 1069.48, 2013.38},
      {611.44, 1153.18, 1925.78},
      {624.00, 1177.40, 2259.84}},
     {{1082.42, 2112.96, 4184.38},
      {1195.68, 2217.22, 4098.68},
      {1235.04, 2515.30, 4940.08},
      {1223.26, 2379.58, 4521.26}}},
};

// Seconds per iteration.
constexpr double measured(int model, int link, int method, int size) {
    return kBatch * kGpus[size] / kThroughput[model][link][method][size];
}

constexpr double one_gpu_seconds(int model) {
    return kBatch / kOneGpu[model];
}

}  // namespace deft::anchors
