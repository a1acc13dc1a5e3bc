# SPDX-License-Identifier: Apache-2.0
"""A DDP job on hosts with an active RDMA port."""
