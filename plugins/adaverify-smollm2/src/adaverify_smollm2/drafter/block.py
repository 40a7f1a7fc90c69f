"""The block drafter as the engine drives it: bound to the target, in its dtype, one score a draft."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from adaverify_contracts import AttendContext, EngineError, Limits, TappedModel
from adaverify_smollm2.drafter.model import BlockDrafterModel
from adaverify_smollm2.drafter.packing import pack_linears
from adaverify_smollm2.drafter.weights import FOLDER, load_block_drafter


class SmolBlockDrafter:
    """K drafts and confidences from one pass (contract ``BlockDrafter``); its scores have seen ``PREFIX``.

    Args:
        limits: K may be less than the trained block: then the first K drafts of it are taken.
        device: run device.
        folder: with the weights.
    """

    def __init__(self, limits: Limits, device: torch.device, folder: Path = FOLDER) -> None:
        self._width, self._device, self._folder = limits.draft_tokens, device, folder
        self._model: BlockDrafterModel | None = None

    @property
    def model(self) -> BlockDrafterModel:
        """The module; there is none before ``bind``."""
        assert self._model is not None  # noqa: S101 - the engine binds first
        return self._model

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs it reads, counted from 1."""
        return self.model.config.feature_layers

    @property
    def queries(self) -> int:
        """Rows a request in its calls of ``attend``: the trained block."""
        return self.model.config.block

    def bind(self, target: TappedModel, dtype: torch.dtype) -> None:
        """Read the weights in ``dtype``; engines of one process share them.

        Raises:
            EngineError: trained for another target, or a block shorter than K.
            ModelFileError: the weights are absent or cannot be used.
        """
        self.adopt(_shared(self._folder, self._device, dtype), target)

    def adopt(self, model: BlockDrafterModel, target: TappedModel) -> None:
        """Draft with ``model`` for ``target``.

        Raises:
            EngineError: trained for another target, or a block shorter than K.
        """
        config, geometry = model.config, target.geometry
        sizes = ("hidden", "heads", "kv_heads", "head_dim", "vocabulary")
        wanted = (config.target, *(getattr(config, size) for size in sizes))
        found = (geometry.name, *(getattr(geometry, size) for size in sizes))
        if wanted != found:
            raise EngineError(
                "the block drafter was trained for another target",
                arrived=found,
                allowed=str(wanted),
                remedy="choose the drafter n-gram, or run the model it was trained for",
            )
        if self._width > config.block:
            raise EngineError(
                "the block drafter was trained for fewer draft tokens",
                arrived=f"K = {self._width}",
                allowed=f"0 .. {config.block}",
                remedy="lower K, or choose the drafter n-gram",
            )
        self._model = model

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
        drafts, doubts = self.model.draft(features, tokens, positions, attend)
        greedy, sampled = doubts[:, : self._width].float().unbind(-1)
        return drafts[:, : self._width], torch.where((temperatures > 0)[:, None], sampled, greedy)


@lru_cache(maxsize=2)
def _shared(folder: Path, device: torch.device, dtype: torch.dtype) -> BlockDrafterModel:
    return pack_linears(load_block_drafter(device, dtype, folder))
