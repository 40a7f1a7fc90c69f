"""How many rows a CPU computes for a step, and the token counts between which that makes no difference."""

from __future__ import annotations

FEW = 8
ROWS = 16
"""A CPU's matrix tiles hold as many rows. oneDNN prepares a product anew for each number of rows that it has
not met lately: 6 to 19 ms for the four kinds of a SmolLM2 layer in bfloat16, where all 120 of a step take 20
(60 to 99 rows, two cores)."""


def whole_rows(count: int) -> int:
    """Return how many rows are computed for ``count`` on a CPU: powers of two up to FEW, then whole ROWS."""
    return 1 << (count - 1).bit_length() if 0 < count <= FEW else -(-count // ROWS) * ROWS


def row_tiers(requests: int, draft_tokens: int) -> tuple[int, ...]:
    """Return the token counts that a CPU's decode steps are planned for, rising: the ends of whole rows.

    Full batches of the sizes that cost tables hold are among them: a step of these costs what was measured,
    not what more rows would cost.

    Args:
        requests: most requests of a step.
        draft_tokens: K.
    """
    full = draft_tokens + 1
    most = requests * full
    ends = {whole_rows(count) for count in range(1, min(FEW, most) + 1)} | set(range(ROWS, most + 1, ROWS))
    sizes = {1 << bit for bit in range(requests.bit_length())} | {requests}
    return tuple(sorted(end for end in ends | {full * size for size in sizes} if end <= most))
