"""From logits to accepted drafts and emitted tokens, for every sequence of a step at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_engine.acceptance.blocks import inverse_cdf, top_two
from adaverify_engine.acceptance.laws import target_law
from adaverify_engine.acceptance.match import accept_equal
from adaverify_engine.acceptance.rejection import accept_sampled


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences a step judges: S decode requests and finishing prefills, in logits order.

    Attributes:
        start: int64 [S], first logits row of each.
        admitted: int64 [S], drafts verified; sequence s owns rows start[s] .. start[s] + admitted[s].
        drafts: int64 [S, K].
        draft_law: float32 [S, K, V], or None when every sequence is judged by equality, as with a drafter
            that is deterministic given the prefix.
        temperature: float32 [S], 0 is greedy; top_p: float32 [S].
        noise: float64 [S, K + 1, 2]: two uniforms for each output position.
        by_equality: bool [S], sequences judged by equality beside a draft law (greedy, trim-invariant); None
            for none of them.
    """

    start: torch.Tensor
    admitted: torch.Tensor
    drafts: torch.Tensor
    draft_law: torch.Tensor | None
    temperature: torch.Tensor
    top_p: torch.Tensor
    noise: torch.Tensor
    by_equality: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the step decided.

    Attributes:
        accepted: int64 [S].
        tokens: int64 [S, K + 1]; the first accepted + 1 of each row are emitted.
        rows: int64 [S, K + 1], logits row of each.
        gaps: float32 [S, K + 1], best minus second-best logit.
        finite: bool [S], whether the logits that decide are finite; what is decided by others is nothing.
    """

    accepted: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor
    gaps: torch.Tensor
    finite: torch.Tensor


def judge(logits: torch.Tensor, sequences: Sequences, *, sampled: bool) -> Verdict:
    """Return the verdict on ``logits`` float32 [N, V].

    Args:
        logits: of every query token that may emit.
        sequences: what to judge.
        sampled: False promises that every temperature is 0, which skips the laws.
    """
    width = sequences.drafts.shape[1]
    offset = torch.arange(width + 1, device=logits.device)
    # Past its last verified row a sequence repeats it: valid to read, never emitted.
    rows = sequences.start[:, None] + torch.minimum(offset, sequences.admitted[:, None])
    best, peak, gap = top_two(logits)
    finite = torch.isfinite(peak[rows]).all(1)
    if not sampled:
        tokens = best[rows]
        return Verdict(
            accept_equal(tokens, sequences.drafts, sequences.admitted), tokens, rows, gap[rows], finite
        )
    at = torch.arange(len(logits), device=logits.device)
    owner = torch.searchsorted(sequences.start, at, right=True) - 1
    temperature = sequences.temperature[owner]
    law = target_law(logits, temperature, sequences.top_p[owner])
    equal: tuple[torch.Tensor, torch.Tensor] | None = None
    if sequences.draft_law is None or sequences.by_equality is not None:
        noise = sequences.noise[owner, (at - sequences.start[owner]).clamp(max=width), 1]
        drawn = torch.where(temperature > 0, inverse_cdf(law, noise), best)[rows]
        equal = accept_equal(drawn, sequences.drafts, sequences.admitted), drawn
    if sequences.draft_law is None:
        assert equal is not None  # noqa: S101 - computed above
        return Verdict(*equal, rows, gap[rows], finite)
    accepted, final = accept_sampled(
        law[rows],
        sequences.draft_law,
        sequences.drafts,
        sequences.admitted,
        sequences.noise,
    )
    tokens = torch.where(
        offset == accepted[:, None],
        final[:, None],
        torch.nn.functional.pad(sequences.drafts, (0, 1), value=-1),
    )
    if equal is not None:
        chosen = sequences.by_equality
        assert chosen is not None  # noqa: S101 - computed above
        accepted = torch.where(chosen, equal[0], accepted)
        tokens = torch.where(chosen[:, None], equal[1], tokens)
    return Verdict(accepted, tokens, rows, gap[rows], finite)
