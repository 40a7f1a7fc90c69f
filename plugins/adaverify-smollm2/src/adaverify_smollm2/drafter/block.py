"""The block drafter as the engine drives it: bound to the target, in its dtype, one score a draft."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from adaverify_contracts import AttendContext, EngineError, Limits, TappedModel
from adaverify_smollm2.drafter.config import DrafterConfig
from adaverify_smollm2.drafter.model import BlockDrafterModel
from adaverify_smollm2.drafter.packing import pack_linears
from adaverify_smollm2.drafter.weights import FOLDER, load_block_drafter


class SmolBlockDrafter:
    """K drafts and confidences from one pass (contract ``BlockDrafter``); its scores have seen ``PREFIX``.

    Args:
        limits: K may be less than the trained block: then the first K drafts of it are taken.
        config: of the module.
        read: returns the module in a dtype, on the run device, ready for inference.
    """

    def __init__(
        self, limits: Limits, config: DrafterConfig, read: Callable[[torch.dtype], BlockDrafterModel]
    ) -> None:
        self._width, self._config, self._read = limits.draft_tokens, config, read
        self._model: BlockDrafterModel | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs it reads, counted from 1."""
        return self._config.feature_layers

    @property
    def queries(self) -> int:
        """Rows a request in its calls of ``attend``: the trained block."""
        return self._config.block

    def bind(self, target: TappedModel, dtype: torch.dtype) -> None:
        """Read the weights in ``dtype``.

        Raises:
            EngineError: trained for another target, or a block shorter than K.
            ModelFileError: the weights cannot be used.
        """
        sizes = ("hidden", "heads", "kv_heads", "head_dim", "vocabulary")
        wanted = (self._config.target, *(getattr(self._config, size) for size in sizes))
        found = (target.geometry.name, *(getattr(target.geometry, size) for size in sizes))
        if wanted != found:
            raise EngineError(
                "the block drafter was trained for another target",
                arrived=found,
                allowed=str(wanted),
                remedy="choose the drafter n-gram, or run the model it was trained for",
            )
        if self._width > self._config.block:
            raise EngineError(
                "the block drafter was trained for fewer draft tokens",
                arrived=f"K = {self._width}",
                allowed=f"0 .. {self._config.block}",
                remedy="lower K, or choose the drafter n-gram",
            )
        self._model = self._read(dtype)

    def block(
        self,
        features: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        temperatures: torch.Tensor,
        attend: AttendContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return draft tokens int64 [R, K] and confidence logits float32 [R, K]; launches only.

        A logit is that of the regime its request runs in: greedy at temperature 0, else sampled.
        """
        assert self._model is not None  # noqa: S101 - the engine binds first
        drafts, doubts = self._model.draft(features, tokens, positions, attend)
        greedy, sampled = doubts[:, : self._width].float().unbind(-1)
        return drafts[:, : self._width], torch.where((temperatures > 0)[:, None], sampled, greedy)


def open_block_drafter(limits: Limits, device: torch.device, folder: Path = FOLDER) -> SmolBlockDrafter:
    """Return the drafter whose weights lie in ``folder``; engines of one process share them.

    Raises:
        ModelFileError: they are absent or cannot be used.
    """
    return SmolBlockDrafter(limits, _configuration(folder), lambda dtype: _packed(folder, device, dtype))


@lru_cache(maxsize=2)
def _packed(folder: Path, device: torch.device, dtype: torch.dtype) -> BlockDrafterModel:
    return pack_linears(load_block_drafter(device, dtype, folder))


@lru_cache(maxsize=2)
def _configuration(folder: Path) -> DrafterConfig:
    return load_block_drafter(torch.device("cpu"), torch.float32, folder).config
