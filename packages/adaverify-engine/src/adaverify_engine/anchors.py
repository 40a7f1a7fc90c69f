"""What a drafter that reads the target would draft at every position of a text that is known already.

An engine drafts where its steps begin, and where they begin depends on what was verified. Here the text is
given: one causal pass of the target over all of it, then the drafter over many positions (*anchors*) at once,
each of which sees what an engine would show it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from adaverify_contracts import BlockDrafter, EngineError, TappedModel, TargetModel
from adaverify_engine.drafters.reading import bind_block

AT_ONCE = 32
"""Anchors in one call of the drafter; its logits over a draft vocabulary are what takes memory."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts at A anchors.

    Attributes:
        tokens: int64 [A, K].
        scores: float32 [A, K], raw.
        accepted: int64 [A], how many leading drafts are the tokens of the text.
    """

    tokens: np.ndarray
    scores: np.ndarray
    accepted: np.ndarray


class AnchorDrafter:
    """Drafts at given positions of given texts.

    Args:
        block: proposes; it is bound to the target here.
        target: shows its hidden states.
        dtype: in which the target runs.
        device: run device.
        draft_tokens: K.

    Raises:
        EngineError: the model shows no features, or the drafter does not fit it.
    """

    def __init__(
        self,
        block: BlockDrafter,
        target: TargetModel,
        dtype: torch.dtype,
        device: torch.device,
        draft_tokens: int,
    ) -> None:
        self._width = draft_tokens
        self._taps = bind_block(block, target, dtype)
        assert isinstance(target, TappedModel)  # noqa: S101 - bind_block has checked
        self._block, self._target, self._device = block, target, device

    @torch.inference_mode()
    def draft(self, text: Sequence[int], first: int, last: int, temperature: float = 0.0) -> Drafts:
        """Return the drafts at the anchors ``first`` .. ``last``, each with that position's token the newest.

        Args:
            text: token ids, K behind the last anchor at least.
            first: at least 1: an anchor reads the features of the position before it.
            last: not below ``first``.
            temperature: at which the text was sampled, 0 where it is greedy.

        Raises:
            EngineError: an anchor has nothing before it, or fewer than K tokens behind it.
        """
        if not 1 <= first <= last < len(text) - self._width:
            raise EngineError(
                "drafts cannot be held against the text",
                arrived={"anchors": (first, last), "tokens": len(text)},
                allowed=f"anchors in 1 .. {len(text) - 1 - self._width}, K tokens before the end",
                remedy="draft nearer to the start, or give more of the text",
            )
        ids = torch.tensor(list(text), dtype=torch.int64, device=self._device)
        places = torch.arange(len(ids), device=self._device)
        seen = _Sequence(self._target.geometry.heads)
        _, features = self._target.forward_tapped(ids, places, seen, self._taps)
        parts = [
            self._part(ids, features, seen, at, temperature)
            for at in torch.split(places[first : last + 1], AT_ONCE)
        ]
        tokens, scores = (torch.cat(part) for part in zip(*parts, strict=True))
        behind = ids[places[first : last + 1, None] + 1 + places[: self._width]]
        accepted = (tokens == behind).long().cumprod(dim=1).sum(dim=1)
        return Drafts(tokens.cpu().numpy(), scores.float().cpu().numpy(), accepted.cpu().numpy())

    def _part(
        self,
        ids: torch.Tensor,
        features: torch.Tensor,
        seen: _Sequence,
        at: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        heat = torch.full((len(at),), temperature, dtype=torch.float32, device=self._device)
        context = _AnchorContext(seen, at, self._block.queries)
        return self._block.block(features[at - 1], ids[at], at, heat, context)


class _Sequence:
    """The ``Attend`` of one sequence computed at once: causal, and it keeps keys and values by layer."""

    def __init__(self, heads: int) -> None:
        self._heads = heads
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        self._kept[layer] = (self._by_head(key), self._by_head(value))
        out = scaled_dot_product_attention(query.transpose(0, 1), *self._kept[layer], is_causal=True)
        return out.transpose(0, 1)

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a layer, each [heads, T, head_dim]."""
        return self._kept[layer]

    def _by_head(self, part: torch.Tensor) -> torch.Tensor:
        return part.repeat_interleave(self._heads // part.shape[1], dim=1).transpose(0, 1)


class _AnchorContext:
    """The ``AttendContext`` of anchors of one sequence: the queries of each see the positions before it.

    Args:
        sequence: keys and values.
        at: int64 [A], the anchors.
        queries: rows an anchor.
    """

    def __init__(self, sequence: _Sequence, at: torch.Tensor, queries: int) -> None:
        self._sequence = sequence
        self._end = int(at[-1])
        before = torch.arange(self._end, device=at.device) < at[:, None]
        self._mask = before.repeat_interleave(queries, dim=0)

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        keys, values = (part[:, : self._end] for part in self._sequence.layer(layer))
        out = scaled_dot_product_attention(query.transpose(0, 1), keys, values, attn_mask=self._mask)
        return out.transpose(0, 1)
