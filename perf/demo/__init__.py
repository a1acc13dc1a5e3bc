# SPDX-License-Identifier: Apache-2.0
"""The main job on several hosts over links of unequal rate, without and with deft."""
