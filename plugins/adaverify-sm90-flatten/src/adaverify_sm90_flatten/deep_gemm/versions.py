"""What is known about each build of the library, by its version string; nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogitsContract:
    """What the paged MQA logits of one build accept on this architecture; FP8 in, float32 out.

    Attributes:
        tokens_per_row: allowed N (next_n).
        heads: allowed H.
        head_dims: allowed D.
        page_sizes: allowed P.
        split: KV positions in one split of the schedule.
        max_rows: most rows of one call that have been run.
    """

    tokens_per_row: tuple[int, ...]
    heads: tuple[int, ...] = (32, 64)
    head_dims: tuple[int, ...] = (128,)
    page_sizes: tuple[int, ...] = (64,)
    split: int = 256
    max_rows: int = 16384


# Narrower than what the library checks: D of 32 and 64 and pages of 32 pass its checks and have not been run
# by us, and a page of 32 reads one table entry past a row with an odd page count (deepgemm section 9j).
COMMON = LogitsContract(tokens_per_row=(1, 2))
"""What every known build takes on this architecture; also what is asked of a build that is not listed."""


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """One line of the table.

    Attributes:
        version: ``deep_gemm.__version__``, or the distribution's version where that is what is known.
        distribution: what installs it.
        verified: whether we executed it on this architecture and compared values.
        contract: what it accepts.
        zero_lengths: whether its own schedule kernel survives a batch of zero lengths; ours never builds one.
        note: what else is known.
    """

    version: str
    distribution: str
    verified: bool
    contract: LogitsContract
    zero_lengths: bool
    note: str


PINNED = "2.5.0.post20260629"
_TOKENSPEED = "tokenspeed-deepgemm"
_TABLE = (
    KnownVersion(
        PINNED,
        _TOKENSPEED,
        True,
        LogitsContract(tokens_per_row=(1, 2, 4)),
        True,
        "for torch 2.11 on CUDA 13; N = 4 wants a schedule for half the processors",
    ),
    KnownVersion(
        "2.5.0.post20260604", _TOKENSPEED, False, COMMON, True, "no symbol missing on torch 2.11; not run"
    ),
    KnownVersion(
        "2.5.0.post20260424", _TOKENSPEED, False, COMMON, False, "no symbol missing on torch 2.11; not run"
    ),
    KnownVersion(
        "2.5.0.post20260810",
        _TOKENSPEED,
        False,
        COMMON,
        False,
        "wants torch 2.13 or later; zero clamp not checked",
    ),
    KnownVersion("2.8.0", _TOKENSPEED, False, COMMON, False, "wants torch 2.13 or later"),
    KnownVersion("2.8.2", _TOKENSPEED, False, COMMON, False, "wants torch 2.14.0"),
)
KNOWN_VERSIONS: dict[str, KnownVersion] = {line.version: line for line in _TABLE}


def known_version(version: str) -> KnownVersion:
    """Return the line of a version; an unlisted one is unverified and gets the contract common to all."""
    line = KNOWN_VERSIONS.get(version)
    if line is not None:
        return line
    note = "not in the table; only what every known build takes is asked of it"
    return KnownVersion(version, "unknown", False, COMMON, False, note)
