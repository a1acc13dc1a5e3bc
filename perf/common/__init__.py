# SPDX-License-Identifier: Apache-2.0
"""What the measurements share: hosts and links, ranks, records, command lines, exit codes."""
