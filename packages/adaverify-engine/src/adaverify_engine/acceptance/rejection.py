"""Rejection sampling against a drafter that draws: accept x with min(1, p(x) / q(x)), else max(p - q, 0)."""

from __future__ import annotations

import torch

from adaverify_engine.acceptance.blocks import inverse_cdf


def accept_sampled(
    law: torch.Tensor,
    draft_law: torch.Tensor,
    drafts: torch.Tensor,
    admitted: torch.Tensor,
    noise: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (accepted int64 [S], token after the accepted drafts int64 [S]).

    The token comes from the residual where an admitted draft was refused, and from p itself after a fully
    accepted prefix, trimmed or not (maths section 5.6). Each position's two coins are used at most once:
    a position that is tested is also emitted.

    Args:
        law: float32 [S, K + 1, V], target p at each position.
        draft_law: float32 [S, K, V], q the drafts were drawn from.
        drafts: int64 [S, K], -1 where undrafted.
        admitted: int64 [S].
        noise: float64 [S, K + 1, 2] in [0, 1): the accept coin and the draw of each output position.
    """
    sequences, width = drafts.shape
    index = drafts.clamp(min=0)[:, :, None]
    p_draft = law[:, :width].gather(2, index)[:, :, 0].double()
    q_draft = draft_law.gather(2, index)[:, :, 0].double()
    position = torch.arange(width, device=drafts.device)
    verified = (position < admitted[:, None]) & (drafts >= 0)
    kept = (noise[:, :width, 0] * q_draft < p_draft) & verified
    accepted = kept.long().cumprod(dim=1).sum(dim=1)
    rows = torch.arange(sequences, device=drafts.device)
    final = law[rows, accepted]
    if width:
        refused = accepted < admitted
        residual = (final - draft_law[rows, accepted.clamp(max=width - 1)]).clamp(min=0)
        # p == q to the last bit leaves no residual; it is refused with probability 0, rounding aside.
        usable = refused & (residual.sum(dim=1) > 0)
        final = torch.where(usable[:, None], residual, final)
    return accepted, inverse_cdf(final, noise[rows, accepted, 1])
