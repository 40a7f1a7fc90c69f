"""Launch of the pick: scratch allocated once, two kernels a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import DescriptorError, LayoutError, LimitsError, ceil_div
from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.ops.pick.reference import pick_reference


@dataclass(frozen=True, slots=True)
class PickLaunch:
    """How the pick spreads over the device. Greedy results never depend on it.

    Attributes:
        chunk: logits one program reads, a power of two. 4096: a row of 49152 becomes 12 programs, so that the
            8 rows of a single request still occupy 96 processors, and a row of 262144 stays 64 partial
            results, which one warp combines.
        num_warps: warps of a program. 8: 16 logits a thread, four 16-byte loads in flight.
    """

    chunk: int = 4096
    num_warps: int = 8

    def __post_init__(self) -> None:
        for name, lowest in (("chunk", 16), ("num_warps", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < lowest or value != block_of(value, 1):
                raise DescriptorError(
                    f"PickLaunch.{name} is out of range",
                    arrived=value,
                    allowed=f"a power of two >= {lowest}",
                    remedy="Triton's blocks are powers of two; choose one",
                )


class Pick:
    """The token that each logits row decides, its lead over the second best, and whether all are finite.

    Args:
        max_tokens: most logits rows of a step; sizes the scratch (20 bytes a row and chunk).
        vocabulary: V.
        device: run device.
        backend: ``torch`` (any device; reads the device on the host, so not capturable) or ``triton``.
        launch: launch parameters.

    Raises:
        LimitsError: max_tokens is negative or vocabulary below 1.
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """

    def __init__(
        self,
        max_tokens: int,
        vocabulary: int,
        device: torch.device | str,
        *,
        backend: str = "triton",
        launch: PickLaunch | None = None,
    ) -> None:
        require_backend(backend)
        if max_tokens < 0 or vocabulary < 1:
            raise LimitsError(
                "the sizes of a pick are out of range",
                arrived={"max_tokens": max_tokens, "vocabulary": vocabulary},
                allowed="max_tokens >= 0, vocabulary >= 1",
                remedy="pass the largest padded token count and the model's vocabulary",
            )
        self.backend, self.max_tokens, self.vocabulary = backend, max_tokens, vocabulary
        self._launch = PickLaunch() if launch is None else launch
        self._chunk = min(self._launch.chunk, block_of(vocabulary))
        self._chunks = ceil_div(vocabulary, self._chunk)
        self._scratch: tuple[torch.Tensor, ...] = ()
        if backend == "triton":
            from adaverify_engine.ops.pick import kernel

            require_launchable(kernel.row_kernel, torch.device(device))
            self._first, self._then = kernel.chunk_kernel, kernel.row_kernel
            shape = (max_tokens, self._chunks)
            self._scratch = tuple(
                torch.empty(shape, dtype=dtype, device=device)
                for dtype in (torch.float32, torch.float32, torch.int32, torch.float64)
            )

    def __call__(
        self,
        logits: torch.Tensor,
        token_request: torch.Tensor,
        token_offset: torch.Tensor,
        row_slot: torch.Tensor,
        length: torch.Tensor,
        temperature: torch.Tensor,
        top_p: torch.Tensor,
        noise: torch.Tensor,
        out_token: torch.Tensor,
        out_gap: torch.Tensor,
        out_finite: torch.Tensor,
    ) -> None:
        """Write what T logits rows decide; with Triton it only launches and may be captured.

        Greedy rows take the best token, the smallest id among equals. Rows of a sampled request take the
        token that the inverse CDF of ``target_law`` gives for the second coin of the output position
        length[slot] + token_offset (maths section 5.4, case 4): the host path's token unless the coin lies
        within float32 rounding of a boundary of the CDF, or top_p within rounding of a boundary of the
        nucleus. A row whose best logit is not finite clears ``out_finite`` and takes the smallest id that
        holds it, 0 where there is a NaN. Temperatures below 1e-30 count as 1e-30: the best token. Padding
        tokens take -1 and gap 0.

        Args:
            logits: float32 [T, V], dense rows.
            token_request: int32 [T], row of each token, -1 for padding.
            token_offset: int32 [T], place of each token in its row.
            row_slot: int32 [R], slot of each row, -1 for padding.
            length: int32 [S], tokens of each slot.
            temperature: float32 [S], 0 is greedy.
            top_p: float32 [S] in (0, 1].
            noise: float64 [S, L, 2] in [0, 1), dense.
            out_token: int32 [T].
            out_gap: float32 [T], best minus second best logit.
            out_finite: int32 [1], 1 when every row's best logit is finite, else 0.

        Raises:
            LayoutError: a shape or dtype of logits, noise or outputs does not fit.
        """
        self._check(logits, noise, out_token, out_gap)
        rows = (token_request, token_offset, row_slot, length, temperature, top_p, noise)
        if self.backend == "torch":
            pick_reference(logits, *rows, out_token, out_gap, out_finite)
            return
        tokens = len(logits)
        if not tokens:
            out_finite.fill_(1)
            return
        sizes = {"CHUNKS": self._chunks, "CHUNK": self._chunk, "num_warps": self._launch.num_warps}
        self._first[(tokens, self._chunks)](
            logits,
            token_request,
            row_slot,
            temperature,
            *self._scratch,
            out_finite,
            logits.stride(0),
            self.vocabulary,
            **sizes,
        )
        self._then[(tokens,)](
            logits,
            *rows,
            *self._scratch,
            out_token,
            out_gap,
            out_finite,
            logits.stride(0),
            noise.shape[1],
            self.vocabulary,
            BLOCK_CHUNKS=block_of(self._chunks),
            **sizes,
        )

    def _check(
        self, logits: torch.Tensor, noise: torch.Tensor, out_token: torch.Tensor, out_gap: torch.Tensor
    ) -> None:
        tokens = logits.shape[0]
        fits = (
            logits.dtype == torch.float32
            and logits.shape == (tokens, self.vocabulary)
            and tokens <= self.max_tokens
            and (self.vocabulary == 1 or logits.stride(1) == 1)
            and noise.dtype == torch.float64
            and noise.is_contiguous()
            and out_token.shape == out_gap.shape == (tokens,)
            and out_token.dtype == torch.int32
        )
        if not fits:
            raise LayoutError(
                "the pick's logits, noise or outputs do not fit",
                arrived={
                    "logits": (str(logits.dtype), tuple(logits.shape)),
                    "noise": (str(noise.dtype), tuple(noise.shape)),
                    "outputs": (str(out_token.dtype), tuple(out_token.shape), tuple(out_gap.shape)),
                },
                allowed=f"float32 [T, {self.vocabulary}], dense float64 [S, L, 2], int32 and float32 [T], "
                f"T <= {self.max_tokens}",
                remedy="size the pick for the largest step and keep logits in float32",
            )
