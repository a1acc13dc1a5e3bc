# SPDX-License-Identifier: Apache-2.0
"""Measurements of deft, one script a claim: perf/README.md."""
