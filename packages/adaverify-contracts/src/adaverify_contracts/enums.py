"""Small ordered vocabularies that appear in descriptors, plans and reports."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class GraphSupport(IntEnum):
    """How much of the decode traffic a strategy can serve from a captured graph (design section 10).

    The order is meaningful: a level includes every level below it. Adaptive verification needs
    ``VARLEN_DECODE``.
    """

    NEVER = 0
    UNIFORM_BATCH = 1
    VARLEN_DECODE = 2
    ALWAYS = 3


class KernelLevel(IntEnum):
    """How far a kernel was proven on this device. Only ``EXECUTED`` may select a strategy."""

    ABSENT = 0
    IMPORTED = 1
    EXECUTED = 2


class Seen(IntEnum):
    """What a confidence for draft position k has seen (maths section 5.5), from least to most.

    ``HISTORY``: only what was fixed before this step's first draft token was sampled.
    ``PREFIX``: also this step's draft tokens before position k.
    ``DRAWN_TOKEN``: also the token drawn at position k itself.
    """

    HISTORY = 0
    PREFIX = 1
    DRAWN_TOKEN = 2


class BudgetReads(IntEnum):
    """What a policy's budget depends on (maths section 5.2).

    ``HISTORY``: lagged values only; lossless with any ``HISTORY`` or ``PREFIX`` ranking.
    ``FRONTIER``: live values, admitted best-first and irrevocably, never looking past the frontier.
    ``LIVE``: live values beyond the frontier; changes the output law of sampled requests.
    """

    HISTORY = 0
    FRONTIER = 1
    LIVE = 2


class PlanState(StrEnum):
    """Why a plan has the size it has. Every record carries one, with a reason in words."""

    UNPRICED = "unpriced"
    WARMING = "warming"
    FULL = "full"
    TRIMMING = "trimming"
    IDLE = "idle"


class LoadOutcome(StrEnum):
    """What became of one discovered plugin."""

    LOADED = "loaded"
    DISABLED = "disabled by setting"
    UNMET = "requirement unmet"
    IMPORT_FAILED = "import failed"
    RAISED = "raised"
