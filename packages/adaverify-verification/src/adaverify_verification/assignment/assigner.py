"""Static buffers of the assignment, and the choice between the torch and the Triton backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from adaverify_contracts import LayoutError, Limits, LimitsError
from adaverify_verification.assignment import launch as _launch
from adaverify_verification.assignment.host import assign_host
from adaverify_verification.assignment.reference import assign_reference

BACKENDS = ("torch", "triton")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one step verifies; int32 views into static buffers, rewritten by the next ``assign``.

    With R padded requests and T padded query tokens:

    Attributes:
        admitted: [R]; draft tokens verified, always a prefix of the request's drafts; 0 for padding requests.
        query_start_loc: [R + 1]; cumulative query lengths, ``admitted + 1`` for real requests, 0 for padding;
            also the logits offsets of the decode requests.
        seq_lens: [R]; ``kv_lens`` + query length, 0 for padding requests.
        token_request: [T]; request of each query token, -1 for padding tokens.
        token_offset: [T]; 0 for the certain token, j for draft token j, -1 for padding tokens.
    """

    admitted: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    token_request: torch.Tensor
    token_offset: torch.Tensor


class Assigner:
    """Spend a device budget on the draft tokens most likely to survive (design section 9).

    Args:
        limits: largest shapes; the Triton backend serves at most 1024 requests of at most 15 draft tokens.
        device: run device.
        backend: ``torch`` (any device, any size; NumPy on the same memory when the device is a CPU) or
            ``triton`` (one launch; capturable).
        max_tokens: largest ``padded_tokens``, ``limits.max_tokens`` when None.

    Raises:
        LimitsError: unknown backend, a size the Triton backend does not serve, or max_tokens below 0.
    """

    def __init__(
        self,
        limits: Limits,
        device: torch.device | str,
        *,
        backend: str = "torch",
        max_tokens: int | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise LimitsError(
                "the assignment backend is unknown",
                arrived=backend,
                allowed=" or ".join(BACKENDS),
                remedy="choose torch on a CPU, triton on an accelerator",
            )
        if backend == "triton":
            _launch.check_limits(limits)
        tokens = limits.max_tokens if max_tokens is None else max_tokens
        if tokens < 0:
            raise LimitsError(
                "max_tokens of the assignment is negative",
                arrived=tokens,
                allowed=">= 0",
                remedy="pass the largest padded token count",
            )
        self.limits = limits
        self.backend = backend
        self.max_tokens = tokens
        sizes = {
            "admitted": limits.max_requests,
            "query_start_loc": limits.max_requests + 1,
            "seq_lens": limits.max_requests,
            "token_request": tokens,
            "token_offset": tokens,
        }
        self._buffers = {
            name: torch.zeros(size, dtype=torch.int32, device=device) for name, size in sizes.items()
        }
        self._launches = {
            block: _launch.launch_for(block, limits.draft_tokens)
            for block in {_launch.block_for(requests) for requests in range(limits.max_requests + 1)}
        }
        self._on_host = torch.device(device).type == "cpu"

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Every static tensor by name; addresses never change."""
        return self._buffers

    def assign(
        self,
        confidences: torch.Tensor,
        scheduled: torch.Tensor,
        kv_lens: torch.Tensor,
        budget: torch.Tensor,
        padded_tokens: int,
    ) -> Assignment:
        """Admit the B best scheduled positions and write every boundary that follows.

        Args:
            confidences: float32 [R, K], dense rows; NaN counts as 0, the rest is clamped to [0, 1].
            scheduled: int32 [R]; draft tokens of each request, -1 for a padding request.
            kv_lens: int32 [R]; KV length before this step's query tokens.
            budget: int32 [1] on the device; clamped to [0, min(scheduled positions, padded_tokens - real
                requests)]. A graph need not be captured again when it changes.
            padded_tokens: T, query tokens to describe, at least the number of real requests.

        Returns:
            Views of the static buffers. The Triton backend only launches, so it may be captured and replayed
            with other values of the same shapes, once a first call of each shape has compiled the kernel.

        Raises:
            LayoutError: a shape, dtype or size does not fit; values are never checked.
        """
        self._check(confidences, scheduled, kv_lens, budget, padded_tokens)
        requests = confidences.shape[0]
        buffers = self._buffers
        views = (
            buffers["admitted"][:requests],
            buffers["query_start_loc"][: requests + 1],
            buffers["seq_lens"][:requests],
            buffers["token_request"][:padded_tokens],
            buffers["token_offset"][:padded_tokens],
        )
        if self.backend == "triton":
            parameters = self._launches[_launch.block_for(requests)]
            _launch.launch(confidences, scheduled, kv_lens, budget, views, padded_tokens, parameters)
        elif self._on_host:
            assign_host(
                confidences.numpy(),
                scheduled.numpy(),
                kv_lens.numpy(),
                budget.numpy(),
                padded_tokens,
                tuple(view.numpy() for view in views),
            )
        else:
            results = assign_reference(confidences, scheduled, kv_lens, budget, padded_tokens)
            for view, result in zip(views, results, strict=True):
                view.copy_(result)
        return Assignment(*views)

    def _check(
        self,
        confidences: torch.Tensor,
        scheduled: torch.Tensor,
        kv_lens: torch.Tensor,
        budget: torch.Tensor,
        padded_tokens: int,
    ) -> None:
        requests = confidences.shape[0]
        width = self.limits.draft_tokens
        fits = (
            confidences.dtype == torch.float32
            and confidences.shape == (requests, width)
            and (width < 2 or confidences.stride(1) == 1)
            and scheduled.dtype == kv_lens.dtype == budget.dtype == torch.int32
            and scheduled.shape == kv_lens.shape == (requests,)
            and budget.shape == (1,)
            and requests <= self.limits.max_requests
            and 0 <= padded_tokens <= self.max_tokens
        )
        if not fits:
            arrived = {
                name: (str(tensor.dtype), tuple(tensor.shape))
                for name, tensor in (
                    ("confidences", confidences),
                    ("scheduled", scheduled),
                    ("kv_lens", kv_lens),
                    ("budget", budget),
                )
            }
            raise LayoutError(
                "the assignment's inputs do not fit its static buffers",
                arrived={**arrived, "padded_tokens": padded_tokens},
                allowed=f"float32 [R, {width}], int32 [R], int32 [R], int32 [1] with R <= "
                f"{self.limits.max_requests}, padded_tokens in 0 .. {self.max_tokens}",
                remedy="pad every per-request tensor to one R and size the buffers for the largest batch",
            )
