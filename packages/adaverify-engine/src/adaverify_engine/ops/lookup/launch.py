"""Launch of the lookup: one program a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import DescriptorError, LayoutError, Limits, LimitsError
from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.ops.lookup.reference import LONGEST_MATCH, OCCURRENCES, lookup_reference

MAX_TOKENS = 2**26 - 1
"""Longest history: a place shares one int32 with its match length."""
MAX_DRAFT_TOKENS = 15
"""Largest K: more has not been compiled or tested."""


@dataclass(frozen=True, slots=True)
class LookupLaunch:
    """How the lookup spreads over the device. Results never depend on it; only time does.

    Attributes:
        block: places one iteration compares, a power of two. 1024: most histories are one or two iterations,
            and 8192 tokens are 8.
        num_warps: warps of a program. 8: four places a thread.
    """

    block: int = 1024
    num_warps: int = 8

    def __post_init__(self) -> None:
        for name, lowest in (("block", 16), ("num_warps", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < lowest or value != block_of(value, 1):
                raise DescriptorError(
                    f"LookupLaunch.{name} is out of range",
                    arrived=value,
                    allowed=f"a power of two >= {lowest}",
                    remedy="Triton's blocks are powers of two; choose one",
                )


def launch_for(limits: Limits) -> LookupLaunch:
    """Return the launch parameters for histories of ``limits``.

    Raises:
        LimitsError: K or the model length is beyond what the kernel serves.
    """
    for name, value, largest in (
        ("draft_tokens", limits.draft_tokens, MAX_DRAFT_TOKENS),
        ("max_model_len", limits.max_model_len, MAX_TOKENS),
    ):
        if value > largest:
            raise LimitsError(
                f"Limits.{name} is beyond what the lookup serves",
                arrived=value,
                allowed=f"at most {largest}",
                remedy=f"lower {name}, or draft on the host",
            )
    return LookupLaunch(block=min(LookupLaunch().block, block_of(limits.max_model_len, 128)))


def lookup(
    history: torch.Tensor,
    length: torch.Tensor,
    limit: torch.Tensor,
    row_slot: torch.Tensor,
    hits: torch.Tensor,
    trials: torch.Tensor,
    drafts: torch.Tensor,
    scores: torch.Tensor,
    scheduled: torch.Tensor,
    *,
    launch: LookupLaunch | None = None,
    backend: str = "triton",
) -> None:
    """Propose what followed the longest earlier match of each named request's last tokens.

    Matches are followed back 16 tokens; the newest of equal ones is continued, copying through its own
    proposal where it runs past the end. Without a match the last token is repeated, at the low scores
    -4 - k/4. Exactly min(K, max(limit - length - 1, 0)) drafts are scheduled. Drafts and scores are functions
    of the emitted tokens alone. With Triton it only launches and may be captured.

    Args:
        history: int32 [S, L], the first length[slot] tokens of each row are read.
        length: int32 [S].
        limit: int32 [S], prompt length plus most output tokens.
        row_slot: int32 [R], slots to propose for, -1 for padding; the other slots are left alone.
        hits: float32 [S], decayed accepted drafts of the request.
        trials: float32 [S], decayed drafts on trial.
        drafts: int32 [S, K], written: -1 past scheduled.
        scores: float32 [S, K], written: log-odds (``reference.propose_reference``), 0 past scheduled.
        scheduled: int32 [S], written.
        launch: launch parameters, the defaults when None.
        backend: ``torch`` (any device; reads the device on the host) or ``triton``.

    Raises:
        LayoutError: a shape or dtype does not fit, or an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """
    require_backend(backend)
    _check(history, drafts, scores)
    tensors = (history, length, limit, row_slot, hits, trials, drafts, scores, scheduled)
    if backend == "torch":
        lookup_reference(*tensors)
        return
    from adaverify_engine.ops.lookup.kernel import lookup_kernel

    require_launchable(lookup_kernel, history.device)
    if not len(row_slot):
        return
    launch = LookupLaunch() if launch is None else launch
    width = drafts.shape[1]
    lookup_kernel[(len(row_slot),)](
        *tensors,
        history.stride(0),
        DRAFTS=width,
        BLOCK_DRAFTS=block_of(width),
        BLOCK=launch.block,
        LONGEST=LONGEST_MATCH,
        OCCURRENCES=OCCURRENCES,
        num_warps=launch.num_warps,
    )


def _check(history: torch.Tensor, drafts: torch.Tensor, scores: torch.Tensor) -> None:
    fits = (
        len(history) == len(drafts)
        and drafts.shape == scores.shape
        and drafts.is_contiguous()
        and scores.is_contiguous()
        and (history.shape[1] < 2 or history.stride(1) == 1)
        and history.shape[1] <= MAX_TOKENS
        and history.dtype == drafts.dtype == torch.int32
        and scores.dtype == torch.float32
    )
    if not fits:
        raise LayoutError(
            "the histories and drafts of a lookup do not fit",
            arrived={
                "history": (str(history.dtype), tuple(history.shape)),
                "drafts": (str(drafts.dtype), tuple(drafts.shape)),
                "scores": (str(scores.dtype), tuple(scores.shape)),
            },
            allowed=f"int32 [S, L] with L <= {MAX_TOKENS}, int32 [S, K], float32 [S, K], dense rows",
            remedy="make all of them from one Limits",
        )
