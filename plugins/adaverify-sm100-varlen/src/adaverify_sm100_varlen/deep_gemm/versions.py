"""What each build of the library wants on this architecture, by its version string; nothing is guessed.

Three contracts exist and none can serve another's build: a wrong split or rule makes a kernel run away, and a
wrong dtype is misread. So a version that is not listed has no contract here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rule = Literal["head-heavy", "paired-units"]


@dataclass(frozen=True, slots=True)
class LogitsContract:
    """What the paged MQA logits of one build accept on this architecture; FP8 in, one query token a row.

    Attributes:
        name: for messages.
        rule: which schedule the kernel walks.
        split: KV positions in one split of the schedule.
        row_group: rows one load serves in the schedule's cost rule, 0 for a cost of one a row.
        value_dtype: dtype of weights and logits, ``float32`` or ``bfloat16``.
        micro_scales: whether scales are power-of-two exponents, four to an int32, on q and KV; else q has no
            scale and a KV position has one float32.
        heads: allowed H.
        head_dims: allowed D.
        page_sizes: allowed P.
        max_rows: most rows of one call; deduced from shared memory or the schedule kernel, never run.
    """

    name: str
    rule: Rule
    split: int
    row_group: int
    value_dtype: Literal["float32", "bfloat16"]
    micro_scales: bool
    heads: tuple[int, ...]
    head_dims: tuple[int, ...] = (32, 64, 128)
    page_sizes: tuple[int, ...] = (32, 64)
    max_rows: int = 16384


HEAD = LogitsContract("head", "head-heavy", 256, 0, "float32", False, (8, 16, 32, 64))
"""deepgemm sections 5 and 8.2. This build also takes bfloat16 weights; float32 is what we hand over."""

PAIRED = LogitsContract("paired", "paired-units", 256, 0, "float32", False, (16, 32, 64))
"""deepgemm section 8.3, first half: neighbouring rows of a request pair up."""

# Pages of 32 and 64 as elsewhere, and 128; D of 32 cannot hold four exponents of 32 elements.
NEWER = LogitsContract(
    "newer",
    "head-heavy",
    384,
    4,
    "bfloat16",
    True,
    tuple(range(4, 129, 4)),
    head_dims=(128,),
    page_sizes=(32, 64, 128),
)
"""deepgemm section 8.3, second half: split 384, cost 2 x 4 x ceil(k / 4) + k, bfloat16 in and out."""

CONTRACTS = (HEAD, PAIRED, NEWER)


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """One line of the table.

    Attributes:
        version: ``deep_gemm.__version__``, or the distribution's version where that is what is known.
        distribution: what installs it.
        contract: what it accepts.
        verified: whether we executed it on this architecture and compared values. So far none.
        note: what else is known.
    """

    version: str
    distribution: str
    contract: LogitsContract
    verified: bool
    note: str


_TOKENSPEED = "tokenspeed-deepgemm"
PINNED = "2.5.0.post20260629"
_TABLE = (
    KnownVersion(PINNED, _TOKENSPEED, PAIRED, False, "executed on another chip only; torch 2.11, CUDA 13"),
    KnownVersion("2.6.1", "deep-gemm, from source", HEAD, False, "contract read from its source"),
    KnownVersion("2.8.2", _TOKENSPEED, NEWER, False, "contract read from its source; wants torch 2.14.0"),
    KnownVersion("0.2.5", "sgl-deep-gemm", NEWER, False, "contract read from its source"),
)
KNOWN_VERSIONS: dict[str, KnownVersion] = {line.version: line for line in _TABLE}


def known_version(version: str) -> KnownVersion | None:
    """Return the line of a version, None for one that is not listed.

    What follows a plus sign names a local build (a commit, a CUDA version) and does not count.
    """
    return KNOWN_VERSIONS.get(version.split("+", 1)[0])
