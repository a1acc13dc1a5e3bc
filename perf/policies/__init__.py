# SPDX-License-Identifier: Apache-2.0
"""Every policy that can be carried out, beside the simulator."""
