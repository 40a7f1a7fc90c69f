"""How much measuring a job pays for: a small one gets fewer points, and the smallest none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from adaverify_engine import EngineOptions
from adaverify_engine.profiling import grid_for
from adaverify_verification import ProfileGrid

SHARE = 0.5
"""Timings that may be taken for each decode step of the job, at most."""
ROUNDS = 3
"""Fewer rounds cannot tell a busy machine from a quiet one, so points are saved and not rounds."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """What to measure before a job.

    Attributes:
        grid: the shapes.
        whole: False where points were left out: such a table serves this job and no other.
    """

    grid: ProfileGrid
    whole: bool


def job_steps(modes: int, rounds: int, prompts: int, concurrency: int, tokens: int) -> int:
    """Return the decode steps of a job at most: as many as without a single accepted draft token.

    Args:
        modes: modes that take turns.
        rounds: rounds of each, warm-up included.
        prompts: prompts of a round.
        concurrency: requests at once.
        tokens: new tokens of each prompt.
    """
    return modes * rounds * -(-prompts // concurrency) * tokens


def affordable(
    options: EngineOptions, ladder: tuple[int, ...], steps: int, bare: tuple[int, ...] = ()
) -> Measuring | None:
    """Return the finest measuring that takes at most ``SHARE`` timings a step; None where none does.

    Points in doubt are measured again only as far as that leaves room.

    Args:
        options: of the engine.
        ladder: token counts that are captured; none in eager mode.
        steps: decode steps of the job.
        bare: request counts of captured steps that draft nothing; none where there are none.
    """
    whole = grid_for(options, repeats=ROUNDS, ladder=ladder, bare=bare)
    for number, grid in enumerate(_grids(whole)):
        for retries in range(whole.retries, -1, -1):
            tried = replace(grid, retries=retries)
            if tried.most_timings <= SHARE * steps:
                return Measuring(tried, whole=number == 0)
    return None


def _grids(whole: ProfileGrid) -> Iterator[ProfileGrid]:
    """Yield grids of fewer and fewer points: one context, then one batch size, then three token counts."""
    yield whole
    one_context = replace(whole, contexts=(max(1, whole.contexts[-1] // 2),))
    yield one_context
    one_size = replace(one_context, requests=whole.requests[-1:], bare=whole.bare[-1:])
    yield one_size
    tokens = sorted({tokens for tokens, _, _ in one_size.shapes()})
    yield replace(one_size, tokens=tuple(sorted({tokens[0], tokens[len(tokens) // 2], tokens[-1]})))
