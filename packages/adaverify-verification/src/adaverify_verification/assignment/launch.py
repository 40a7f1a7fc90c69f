"""How the assignment kernel is launched: sizes it serves, and its block and warp choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaverify_contracts import Limits, LimitsError

if TYPE_CHECKING:
    import torch

# One program holds every key in registers: 1024 x 15 keys on 512 threads are 30 registers a thread. Larger
# batches have not been compiled or tested.
MAX_REQUESTS = 1024
MAX_DRAFT_TOKENS = 15

# Fusing s x 65535 + 0.5 rounds once where the reference rounds twice: an integer could differ by one.
COMPILE_OPTIONS = {"enable_fp_fusion": False}


@dataclass(frozen=True, slots=True)
class AssignLaunch:
    """Launch parameters of one padded request count.

    Attributes:
        block_requests: requests held by the program, a power of two.
        position_bits: bits of the key that carry the position; 2 ** bits > K.
        block_tail: padding tokens written at once.
        num_warps: warps of the program.
    """

    block_requests: int
    position_bits: int
    block_tail: int
    num_warps: int


def check_limits(limits: Limits) -> None:
    """Raise ``LimitsError`` naming the offending size when the kernel cannot serve ``limits``."""
    for name, value, largest in (
        ("max_requests", limits.max_requests, MAX_REQUESTS),
        ("draft_tokens", limits.draft_tokens, MAX_DRAFT_TOKENS),
    ):
        if value > largest:
            raise LimitsError(
                f"Limits.{name} is beyond what the assignment kernel serves",
                arrived=value,
                allowed=f"at most {MAX_REQUESTS} requests of at most {MAX_DRAFT_TOKENS} draft tokens",
                remedy=f"lower {name}, or use the torch backend",
            )


def block_for(requests: int) -> int:
    """Return the power of two of requests that one program holds for ``requests`` padded requests."""
    # 16 is the smallest block every target compiles, and smaller ones would not be faster.
    return max(16, 1 << max(requests - 1, 0).bit_length())


def launch_for(requests: int, draft_tokens: int) -> AssignLaunch:
    """Return the launch parameters for ``requests`` padded requests of K = ``draft_tokens``."""
    # One request a thread up to 512 threads: every count of the search is a reduction over the block, and 16
    # warps are the most a program has where a warp is 64 threads.
    block = block_for(requests)
    return AssignLaunch(
        block_requests=block,
        position_bits=max(1, draft_tokens.bit_length()),
        block_tail=256,
        num_warps=max(1, min(16, block // 32)),
    )


def launch(
    confidences: torch.Tensor,
    scheduled: torch.Tensor,
    kv_lens: torch.Tensor,
    budget: torch.Tensor,
    outputs: tuple[torch.Tensor, ...],
    padded_tokens: int,
    parameters: AssignLaunch,
) -> None:
    """Enqueue one assignment; ``outputs`` in the order of ``Assignment``. Allocates and reads nothing."""
    from adaverify_verification.assignment.kernel import assign_kernel

    requests, drafts = confidences.shape
    assign_kernel[(1,)](
        confidences,
        scheduled,
        kv_lens,
        budget,
        *outputs,
        confidences.stride(0),
        requests,
        padded_tokens,
        DRAFTS=drafts,
        POSITION_BITS=parameters.position_bits,
        BLOCK_REQUESTS=parameters.block_requests,
        BLOCK_TAIL=parameters.block_tail,
        num_warps=parameters.num_warps,
        **COMPILE_OPTIONS,
    )
