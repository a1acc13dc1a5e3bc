// SPDX-License-Identifier: Apache-2.0
// From facts to findings. Pure: nothing is looked at but the facts.
#pragma once

#include "tools/doctor/facts.h"
#include "tools/doctor/finding.h"

namespace deft::tools::doctor {

// All of them, most severe first.
Diagnoses judge(const Facts& facts);

// Its parts, one a file.
void judge_program(const Facts& facts, Diagnoses& found);
void judge_preload(const Facts& facts, Diagnoses& found);
void judge_processes(const Facts& facts, Diagnoses& found);
void judge_nccl(const Facts& facts, Diagnoses& found);
void judge_plugin(const Facts& facts, Diagnoses& found);
void judge_meeting(const Facts& facts, Diagnoses& found);
void judge_settings(const Facts& facts, Diagnoses& found);
void judge_ucx(const Facts& facts, Diagnoses& found);
void judge_links(const Facts& facts, Diagnoses& found);
void judge_host(const Facts& facts, Diagnoses& found);
void judge_peer(const Facts& facts, Diagnoses& found);
void judge_records(const Facts& facts, Diagnoses& found);

// "2.28.9" of 22809 and of 2809.
std::string nccl_version_text(int version);

}  // namespace deft::tools::doctor
