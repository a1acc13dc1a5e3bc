# SPDX-License-Identifier: Apache-2.0
"""A job through every kind of fault."""
