"""Prompts on an accelerator do not go to a kernel that plans each shape anew."""

from __future__ import annotations

import torch
from torch.backends.cuda import cudnn_sdp_enabled

from adaverify_engine.attention import prompt_kernels


def test_cudnn_is_left_out_meanwhile_and_only_on_an_accelerator():
    """Torch's choice is the process's: what it was comes back, after an error too."""
    before = cudnn_sdp_enabled()
    with prompt_kernels(torch.device("cuda")):
        assert not cudnn_sdp_enabled()
    assert cudnn_sdp_enabled() == before
    try:
        with prompt_kernels(torch.device("cuda")):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert cudnn_sdp_enabled() == before
    with prompt_kernels(torch.device("cpu")):
        assert cudnn_sdp_enabled() == before
