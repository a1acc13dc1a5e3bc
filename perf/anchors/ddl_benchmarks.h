// SPDX-License-Identifier: Apache-2.0
// HKBU-HPML ddl-benchmarks, results of 29 May 2020 (paper: arXiv 2005.13247): samples per second on
// nodes of 4 GPUs that meet over PCIe, all methods with NCCL all-reduce. Numbers only.
#pragma once

namespace deft::anchors {

inline constexpr int kModels = 3;
inline constexpr int kFitted = 2;  // constants are fitted to the first two models; the third tries
inline constexpr int kLinks = 2;
inline constexpr int kMethods = 4;
inline constexpr int kSizes = 4;
inline constexpr int kFirstFitted = 1;  // likewise the first size: one node

inline constexpr double kBatch[kModels] = {64, 64, 8};  // per GPU
inline constexpr int kGpus[kSizes] = {4, 8, 16, 32};
inline constexpr const char* kModelNames[kModels] = {"resnet50", "bert-base", "bert-large"};
inline constexpr const char* kLinkNames[kLinks] = {"10GbE", "100Gb IB"};
// BSP: all-reduce after backward; WFBP: a message per tensor, overlapped; MG-WFBP: merged;
// BS: ByteScheduler.
inline constexpr const char* kMethodNames[kMethods] = {"BSP", "WFBP", "MG-WFBP", "BS"};
inline constexpr int kBsp = 0;
inline constexpr int kWfbp = 1;
inline constexpr int kMgWfbp = 2;
inline constexpr int kByteScheduler = 3;
inline constexpr double kOneGpu[kModels] = {253.1, 212.8, 49};

// [model][link][method][size]
inline constexpr double kThroughput[kModels][kLinks][kMethods][kSizes] = {
    {{{925.02, 1282.28, 2485.12, 4920.82},
      {1015.40, 1795.74, 3146.78, 5113.18},
      {1003.18, 1980.58, 3784.98, 6883.60},
      {658.12, 1319.10, 2701.52, 4754.26}},
     {{920.28, 1821.20, 3602.90, 7126.52},
      {1014.28, 2017.12, 3946.06, 7326.56},
      {1003.90, 2001.72, 3987.40, 7876.46},
      {653.80, 1257.66, 2529.14, 4766.38}}},
    {{{555.52, 518.94, 984.88, 1926.64},
      {634.10, 582.26, 1069.48, 2013.38},
      {659.06, 611.44, 1153.18, 1925.78},
      {623.38, 624.00, 1177.40, 2259.84}},
     {{555.70, 1082.42, 2112.96, 4184.38},
      {631.80, 1195.68, 2217.22, 4098.68},
      {660.42, 1235.04, 2515.30, 4940.08},
      {621.20, 1223.26, 2379.58, 4521.26}}},
    {{{53.04, 28.96, 54.30, 105.10},
      {56.04, 29.06, 53.42, 101.96},
      {57.34, 30.04, 54.26, 105.02},
      {51.32, 30.40, 56.00, 108.80}},
     {{53.08, 99.18, 191.64, 375.22},
      {56.30, 101.68, 185.42, 339.82},
      {57.50, 106.78, 205.78, 400.16},
      {49.42, 91.267, 171.90, 326.40}}},
};

// Seconds per iteration.
constexpr double measured(int model, int link, int method, int size) {
    return kBatch[model] * kGpus[size] / kThroughput[model][link][method][size];
}

constexpr double one_gpu_seconds(int model) {
    return kBatch[model] / kOneGpu[model];
}

}  // namespace deft::anchors
