"""Launch of varlen rows: the flatten kernel with tables that reach the end of each row's request."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from adaverify_contracts import Limits
from adaverify_metadata.ops.flatten.launch import prepare_flatten
from adaverify_metadata.ops.launch_config import LaunchConfig
from adaverify_metadata.ops.row_launch import RowLaunch


def prepare_varlen(limits: Limits, config: LaunchConfig, buffers: Mapping[str, torch.Tensor]) -> RowLaunch:
    """Return a launch that builds one row a query token for kernels that join rows of one request."""
    return prepare_flatten(limits, config, buffers, whole_request=True)
