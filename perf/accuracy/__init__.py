# SPDX-License-Identifier: Apache-2.0
"""What the delivery policies do to training."""
