# SPDX-License-Identifier: Apache-2.0
"""The library in the real NCCL, on a GPU."""
