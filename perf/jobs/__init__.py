# SPDX-License-Identifier: Apache-2.0
"""The jobs that are measured."""
