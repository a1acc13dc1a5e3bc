// SPDX-License-Identifier: Apache-2.0
// The job's answer to what NCCL's variables are: only its name matters here.
int deft_test_env_library;
