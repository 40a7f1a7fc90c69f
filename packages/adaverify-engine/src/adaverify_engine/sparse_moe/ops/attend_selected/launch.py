"""Launch of the sparse attention, and the scratch of its splits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_contracts import LayoutError
from adaverify_engine.ops.launchable import block_of, require_backend, require_launchable
from adaverify_engine.sparse_moe.ops.attend_selected.reference import attend_selected_reference

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class AttendLaunch:
    """How the kernel spreads over the device.

    At the decoder's default sizes these fit 227 KiB of shared memory: a device with less, or with another
    matrix unit, needs its own.

    Attributes:
        block: entries of one step of a program. 32: 36 KiB of bfloat16 entries, so that two steps' tiles are
            on their way while a third is computed with; at 64 no third one fits, and computing waits.
        span: fewest entries of a split, a multiple of ``block``. 64: a split writes a float32 sum of 64 KiB,
            as much as 57 entries are.
        programs: splits are added until so many programs run. 128: there are 132 processors, and each holds
            one program.
        num_warps: warps of a program. 8: two warp groups halve the [512, 32] sum, 64 registers a thread.
        num_stages: 7: the compiler spreads them over the load of a tile's addresses and that of the tile, and
            needs so many to fetch tiles two steps ahead.
    """

    block: int = 32
    span: int = 64
    programs: int = 128
    num_warps: int = 8
    num_stages: int = 7


class AttendSelected:
    """Sparse attention of one decoder's sizes.

    Args:
        max_tokens: query tokens of the largest step, padding included.
        heads: query heads.
        latent: width of an entry's value, a power of two.
        rope: the rest of an entry's key, a power of two.
        selected: entries attended to, at most.
        page: entries in one page.
        device: torch device.
        backend: ``torch`` or ``triton``.
        launch: launch parameters.

    Raises:
        LayoutError: an unknown backend.
        CapabilityError: Triton on a CPU without its interpreter.
    """

    def __init__(
        self,
        max_tokens: int,
        *,
        heads: int,
        latent: int,
        rope: int,
        selected: int,
        page: int,
        device: torch.device | str,
        backend: str = "triton",
        launch: AttendLaunch | None = None,
    ) -> None:
        require_backend(backend)
        self._heads, self._latent, self._rope = heads, latent, rope
        self._selected, self._page, self._backend = selected, page, backend
        self._launch = AttendLaunch() if launch is None else launch
        self._max_tokens = max_tokens
        self._partial = self._extremes = self._cells = torch.empty(0, device=device)
        if backend == "triton":
            from adaverify_engine.sparse_moe.ops.attend_selected.kernel import attend_selected_kernel

            require_launchable(attend_selected_kernel, torch.device(device))
            # Tokens x splits is largest for one of the token counts at which the number of splits falls.
            counts = range(1, max_tokens + 1)
            rows = max((n * self.splits(n) for n in counts if self.splits(n) > 1), default=0)
            self._partial = torch.empty((rows, heads, latent), dtype=torch.float32, device=device)
            self._extremes = torch.empty((2, rows, heads), dtype=torch.float32, device=device)
            listed = max((n * self.splits(n) * self._span(self.splits(n)) for n in counts), default=0)
            self._cells = torch.empty(listed, dtype=torch.int64, device=device)

    def splits(self, tokens: int) -> int:
        """Return the programs that share one token's entries, a power of two; by the padded count alone."""
        launch, splits = self._launch, 1
        while tokens * splits * 2 <= launch.programs and splits * 2 * launch.span <= self._selected:
            splits *= 2
        return splits

    def _span(self, splits: int) -> int:
        """Return the room for one split's cells, at least one block."""
        return block_of(-(-self._selected // splits), self._launch.block)

    def __call__(
        self,
        query: torch.Tensor,
        own: torch.Tensor,
        latents: torch.Tensor,
        picked: torch.Tensor | None,
        token_slot: torch.Tensor,
        visible: torch.Tensor,
        token_request: torch.Tensor,
        block_table: torch.Tensor,
    ) -> torch.Tensor:
        """Return [T, heads, latent]: attention of each token over its entries and itself; padding gives 0.

        A token that sees at most ``selected`` entries attends to all of them, whatever ``picked`` holds; one
        that sees more, to those of its row of ``picked``. An entry at or past ``visible`` is never read. The
        softmax scale is (latent + rope)^-1/2. With Triton it only launches: one kernel, or two where entries
        are split.

        Args:
            query: [T, heads, latent + rope], the last two dimensions dense.
            own: [T, latent + rope], each token's own entry.
            latents: [cells, latent + rope], the pool, dense; page p holds cells p x page and on.
            picked: int32 or int64 [slots, selected], entry numbers by slot, in any order; None where no
                token can see more than ``selected``.
            token_slot: int32 [T], slot of each token.
            visible: int32 [T], entries each token may see.
            token_request: int32 [T], -1 for padding.
            block_table: int32 [R, W], dense in the last dimension.

        Raises:
            LayoutError: shapes or strides do not fit.
        """
        self._check(query, own, latents, picked)
        tokens = len(query)
        if self._backend == "torch":
            by_token = None if picked is None else picked[token_slot.long()]
            return attend_selected_reference(
                query,
                own,
                latents,
                by_token,
                visible,
                token_request,
                block_table,
                latent=self._latent,
                selected=self._selected,
                page=self._page,
            ).to(query.dtype)
        out = torch.empty((tokens, self._heads, self._latent), dtype=query.dtype, device=query.device)
        if tokens:
            self._enqueue(query, own, latents, picked, token_slot, visible, token_request, block_table, out)
        return out

    def _enqueue(
        self,
        query: torch.Tensor,
        own: torch.Tensor,
        latents: torch.Tensor,
        picked: torch.Tensor | None,
        token_slot: torch.Tensor,
        visible: torch.Tensor,
        token_request: torch.Tensor,
        block_table: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        from adaverify_engine.sparse_moe.ops.attend_selected.kernel import (
            attend_selected_kernel,
            combine_selected_kernel,
        )

        tokens, splits, launch = len(query), self.splits(len(query)), self._launch
        apart = self._extremes.stride(0) if self._extremes.numel() else 0
        interpreted = type(attend_selected_kernel).__name__ == "InterpretedFunction"
        attend_selected_kernel[(tokens, splits)](
            query,
            own,
            latents,
            token_slot if picked is None else picked,
            token_slot,
            visible,
            token_request,
            block_table,
            out,
            self._partial,
            self._extremes,
            self._cells,
            query.stride(0),
            block_table.stride(0),
            apart,
            (self._latent + self._rope) ** -0.5 * LOG2_E,
            HEADS=self._heads,
            LINES=block_of(self._heads),
            LATENT=self._latent,
            ROPE=self._rope,
            PAGE=self._page,
            SELECTED=self._selected,
            SPLITS=splits,
            SPAN=-(-self._selected // splits),
            BLOCK_SPAN=self._span(splits),
            BLOCK=launch.block,
            LISTED=picked is not None,
            # The interpreter keeps bfloat16 as 16-bit integers and multiplies those.
            WIDEN=interpreted,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
        )
        if splits > 1:
            combine_selected_kernel[(tokens, self._heads)](
                self._partial,
                self._extremes,
                token_request,
                out,
                apart,
                HEADS=self._heads,
                LATENT=self._latent,
                SPLITS=splits,
                num_warps=4,
            )

    def _check(
        self, query: torch.Tensor, own: torch.Tensor, latents: torch.Tensor, picked: torch.Tensor | None
    ) -> None:
        tokens, key = len(query), self._latent + self._rope
        fits = (
            tuple(query.shape) == (tokens, self._heads, key)
            and query.stride()[1:] == (key, 1)
            and tuple(own.shape) == (tokens, key)
            and own.is_contiguous()
            and latents.dim() == 2
            and latents.shape[1] == key
            and latents.is_contiguous()
            and query.dtype == own.dtype == latents.dtype
            and (picked is None or (picked.is_contiguous() and picked.shape[1] == self._selected))
            and tokens <= self._max_tokens
        )
        if not fits:
            raise LayoutError(
                "these tensors do not fit the sparse attention",
                arrived={
                    "query": (tuple(query.shape), tuple(query.stride()), str(query.dtype)),
                    "own": (tuple(own.shape), str(own.dtype)),
                    "latents": (tuple(latents.shape), str(latents.dtype)),
                    "picked": None if picked is None else tuple(picked.shape),
                },
                allowed=f"at most {self._max_tokens} tokens of {self._heads} heads x {key}, one dtype, "
                f"entries {key} wide, {self._selected} picked",
                remedy="make AttendSelected from the sizes of the decoder",
            )
