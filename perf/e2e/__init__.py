# SPDX-License-Identifier: Apache-2.0
"""Whole jobs beside the lower bound of each mode."""
