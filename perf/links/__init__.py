# SPDX-License-Identifier: Apache-2.0
"""The plugin over several links and under faults."""
