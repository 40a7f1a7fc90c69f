"""Fixtures: the training package on the path, a tiny target, a tiny drafter for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from adaverify_smollm2.drafter import BlockDrafterModel, DrafterConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "training"))

SIZES = {
    "block": 4,
    "table": 16,
    "rank": 8,
    "feature_layers": (1, 2),
    "cross_layers": (0, 1),
}


@pytest.fixture
def tiny_target(tiny_path):
    """The tiny model as the training runs it, in float32."""
    from drafter_training.target import DenseTarget

    return DenseTarget.load(tiny_path, torch.device("cpu"), torch.float32, 64)


@pytest.fixture
def tiny_config(tiny_target) -> DrafterConfig:
    """A drafter's sizes for the tiny target."""
    from drafter_training.initial import target_config

    return target_config(tiny_target, 200, **SIZES)


@pytest.fixture
def tiny_drafter(tiny_target, tiny_config) -> BlockDrafterModel:
    """An untrained drafter in which every part has a say."""
    from drafter_training.initial import initial_drafter

    generator = torch.Generator().manual_seed(3)
    ids = torch.randperm(tiny_config.vocabulary, generator=generator)[: tiny_config.draft_vocabulary]
    model = initial_drafter(tiny_target, tiny_config, ids, seed=5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval().requires_grad_(False)
