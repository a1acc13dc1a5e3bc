# SPDX-License-Identifier: Apache-2.0
"""PyTorch's backend "nccl" on CPU tensors, over the software device. See ../README.md."""
