"""Drafters that read the target: what a model shows them, and what an engine keeps for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from adaverify_contracts.models import Attend, TargetModel

if TYPE_CHECKING:
    import torch


@runtime_checkable
class TappedModel(TargetModel, Protocol):
    """A target whose hidden states between its layers may be read."""

    def forward_tapped(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend, taps: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what ``forward`` returns, and the features [T, len(taps) x hidden] of every token.

        Features are the residual stream after the layers ``taps``, counted from 1 and rising, before any
        later norm, one beside the other, in the model's dtype.
        """
        ...


class AttendContext(Protocol):
    """Attention over what the target has cached of each request; it stores nothing."""

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [R x Q, heads, head_dim] for query [R x Q, heads, head_dim], Q neighbouring rows a request.

        Every query of a request sees all of its cached positions, and no other. ``layer`` counts from 0, as
        in ``Attend``; heads and their width are the target's; keys carry the target's position encoding. The
        softmax scale is ``head_dim ** -0.5``.
        """
        ...


@runtime_checkable
class BlockDrafter(Protocol):
    """Proposes K tokens for every request in one pass, from what the target has computed already.

    It holds weights and nothing by request: the engine keeps the features and has the target's KV, so a
    refused draft leaves nothing to undo. Drafts have to be a function of the arguments (greedy drafting).
    """

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs it reads, counted from 1, rising."""
        ...

    @property
    def queries(self) -> int:
        """Q, rows a request in its calls of ``attend``."""
        ...

    def bind(self, target: TappedModel, dtype: torch.dtype) -> None:
        """Get ready to draft for ``target``, which runs in ``dtype``; called once, before ``block``.

        Raises:
            EngineError: it was made for another target.
        """
        ...

    def block(
        self,
        features: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        temperatures: torch.Tensor,
        attend: AttendContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return draft tokens int64 [R, K] and their raw scores float32 [R, K].

        Launches only: no host read, shapes fixed by R, so that it may be captured. Rows do not mix.

        Args:
            features: [R, len(taps) x hidden] of position ``positions`` - 1, the last one computed.
            tokens: int64 [R], the newest token, whose KV is not there yet.
            positions: int64 [R], its position: as many are cached. Padding rows hold 0 and any features.
            temperatures: float32 [R], at which the target is sampled, 0 where it is greedy: a score may be
                about either.
            attend: over positions 0 .. ``positions`` - 1.
        """
        ...
