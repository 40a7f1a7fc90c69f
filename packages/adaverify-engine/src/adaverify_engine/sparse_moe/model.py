"""One decode step of the sparse mixture-of-experts decoder, from staged rows to a token for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from adaverify_contracts import DecodeRows, EngineError, Limits, PagedLogits
from adaverify_engine.sparse_moe.caches import SparseCaches
from adaverify_engine.sparse_moe.experts import grouped_product
from adaverify_engine.sparse_moe.index_logits import index_logits_reference
from adaverify_engine.sparse_moe.ops.attend_selected.launch import AttendSelected
from adaverify_engine.sparse_moe.ops.gated.launch import gated
from adaverify_engine.sparse_moe.ops.join_residual.launch import join_residual
from adaverify_engine.sparse_moe.ops.place_tokens.launch import place_tokens
from adaverify_engine.sparse_moe.ops.place_tokens.reference import TokenPlaces
from adaverify_engine.sparse_moe.ops.rotation import normed, rotation_tables
from adaverify_engine.sparse_moe.ops.route_tokens.launch import route_tokens
from adaverify_engine.sparse_moe.ops.select_entries.launch import select_entries
from adaverify_engine.sparse_moe.ops.shape_queries.launch import shape_queries
from adaverify_engine.sparse_moe.ops.store_entries.launch import store_entries
from adaverify_engine.sparse_moe.sizes import SparseMoeSizes
from adaverify_engine.sparse_moe.weights import LayerWeights, draw_weights

if TYPE_CHECKING:
    from adaverify_runtime import Staged

# Rows of scores this wide and multiples are dense as the kernel library allocates them, and top-k copies a
# result that is not.
_DENSE_WIDTH = 256


class SparseMoe:
    """Random weights, both caches and the decode step of one accelerator of four.

    A token id is made of position and request, so nothing has to be known of the text: it is meaningless.

    Args:
        sizes: of the decoder.
        limits: of the deployment; pages count cache entries, so ``compress_ratio`` is that of ``sizes``.
        device: torch device.
        seed: of weights and caches.
        logits: scores of the indexer, from a decode strategy's ``logits`` where that has one; None scores in
            plain torch, which waits for the device and cannot be captured.
        dtype: of weights, activations and latent cache: bfloat16 on an accelerator, float32 on a CPU.
        backend: of the operations: ``triton`` on an accelerator, ``torch`` on a CPU.

    Raises:
        EngineError: the limits do not fit the sizes, or the memory does not hold them.
    """

    def __init__(
        self,
        sizes: SparseMoeSizes,
        limits: Limits,
        device: torch.device | str,
        *,
        seed: int = 0,
        logits: PagedLogits | None = None,
        dtype: torch.dtype | None = None,
        backend: str | None = None,
    ) -> None:
        _check(sizes, limits)
        self.sizes, self.limits, self.device = sizes, limits, torch.device(device)
        host = self.device.type == "cpu"
        self.dtype = dtype or (torch.float32 if host else torch.bfloat16)
        self.backend = backend or ("torch" if host else "triton")
        self._logits = index_logits_reference if logits is None else logits
        self._seed = seed
        page = limits.page_size
        self._attend = AttendSelected(
            limits.max_tokens,
            heads=sizes.heads,
            latent=sizes.latent,
            rope=sizes.rope,
            selected=sizes.selected,
            page=page,
            device=self.device,
            backend=self.backend,
        )
        entries = limits.max_kv_len // sizes.compress_ratio
        self._listed = entries > sizes.selected
        self._width = min(-(-entries // _DENSE_WIDTH) * _DENSE_WIDTH, limits.table_width * page)
        self._cosine, self._sine = rotation_tables(limits.max_kv_len, sizes.rope, self.device)
        self._counts = torch.zeros((sizes.layers, sizes.local_experts), dtype=torch.int32, device=self.device)
        self.caches = SparseCaches(sizes, limits, self.dtype, self.device)
        self._weights = draw_weights(sizes, self.device, self.dtype, seed)

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of the weights and of the caches."""
        return {"weights": self.sizes.parameters * self.dtype.itemsize, "caches": self.caches.bytes}

    def open(self, kv_len: int) -> torch.Tensor:
        """Fill the caches for ``limits.max_requests`` requests of ``kv_len`` tokens; return their pages.

        Returns:
            int32 [max_requests, W], the block table by request slot; no page is shared. The steps' table is
            its rows in step order, page 0 for padding requests.

        Raises:
            EngineError: ``kv_len`` is outside 0 .. max_model_len.
        """
        if not 0 <= kv_len <= self.limits.max_model_len:
            raise EngineError(
                "the sparse decoder cannot open requests of this length",
                arrived=kv_len,
                allowed=f"0 .. {self.limits.max_model_len} (max_model_len)",
                remedy="raise max_model_len or shorten the context",
            )
        self.caches.fill(self._seed)
        return self.caches.block_table

    def decode(self, staged: Staged, kv_lens: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
        """Return int32 [tokens], the token each padded query token decides; padding tokens give any.

        Writes the entries that query tokens complete into both caches. Only launches, on an accelerator with
        the kernels of a strategy, and may be captured: what it allocates comes from the graph's pool.

        Args:
            staged: assignment and rows of the step; nothing else of it is read.
            kv_lens: int32 [R or more], KV length of each row before the step, in tokens.
            block_table: int32 [R or more, W], by row.
        """
        return linear(self.hidden(staged, kv_lens, block_table), self._weights.head).argmax(-1).int()

    def hidden(self, staged: Staged, kv_lens: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
        """Return the normed hidden states [tokens, hidden] that ``decode`` decides by."""
        assignment, sizes = staged.assignment, self.sizes
        places = place_tokens(
            assignment.token_request,
            assignment.token_offset,
            kv_lens,
            block_table,
            ratio=sizes.compress_ratio,
            page=self.limits.page_size,
            vocabulary=sizes.vocabulary,
            backend=self.backend,
        )
        # Routing counts by atomic additions, layer by layer; one launch readies all of them.
        self._counts.zero_()
        residual = self._weights.embedding.index_select(0, places.ids)
        norm = normed(residual).to(self.dtype)
        request = assignment.token_request
        for number, layer in enumerate(self._weights.layers):
            attended = self._attention(number, layer, norm, places, staged.rows, request, block_table)
            residual, norm = join_residual(residual, attended, backend=self.backend)
            residual, norm = self._experts(number, layer, residual, norm, request)
        return norm

    def _attention(
        self,
        number: int,
        layer: LayerWeights,
        norm: torch.Tensor,
        places: TokenPlaces,
        rows: DecodeRows,
        token_request: torch.Tensor,
        block_table: torch.Tensor,
    ) -> torch.Tensor:
        sizes, rotation = self.sizes, (self._cosine, self._sine)
        latents, index = self.caches.latents[number], self.caches.index[number]
        mixed = linear(norm, layer.mixed)
        base, own = store_entries(
            mixed,
            places,
            *rotation,
            latents,
            index,
            rank=sizes.query_rank,
            latent=sizes.latent,
            index_dim=sizes.index_dim,
            backend=self.backend,
        )
        wide = linear(base, layer.wide)
        codes, weights = shape_queries(
            wide,
            mixed[:, -sizes.index_heads :],
            places.position,
            *rotation,
            heads=sizes.heads,
            index_dim=sizes.index_dim,
            backend=self.backend,
        )
        picked = None
        if self._listed:
            scores = self._logits(codes, weights, index, rows, self._width)
            picked = select_entries(scores, rows.row_lens, sizes.selected, backend=self.backend)
        width = sizes.heads * sizes.key
        attended = self._attend(
            wide[:, :width].view(len(wide), sizes.heads, sizes.key),
            own,
            latents,
            picked,
            rows.token_slot,
            places.visible,
            token_request,
            block_table,
        )
        return linear(linear(attended.flatten(1), layer.output_in), layer.output_out)

    def _experts(
        self,
        number: int,
        layer: LayerWeights,
        residual: torch.Tensor,
        norm: torch.Tensor,
        token_request: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gate = linear(norm, layer.gate)
        sent = route_tokens(
            gate[:, : self.sizes.experts],
            norm,
            token_request,
            self._counts[number],
            active=self.sizes.active_experts,
            backend=self.backend,
        )
        up = grouped_product(sent.rows, layer.expert_up, sent.ends)
        shared, routed = gated(gate[:, self.sizes.experts :], up, sent.ends, backend=self.backend)
        down = grouped_product(routed, layer.expert_down, sent.ends)
        return join_residual(
            residual,
            linear(shared, layer.shared_down),
            down,
            sent.places,
            sent.weights,
            backend=self.backend,
        )


def _check(sizes: SparseMoeSizes, limits: Limits) -> None:
    """Raise ``EngineError`` unless decode rows of these limits are those of this decoder."""
    problems = {
        "compress_ratio": (limits.compress_ratio, sizes.compress_ratio),
        "context_parallel_size": (limits.context_parallel_size, 1),
    }
    for name, (arrived, allowed) in problems.items():
        if arrived != allowed:
            raise EngineError(
                f"the limits' {name} is not that of the sparse decoder",
                arrived=arrived,
                allowed=str(allowed),
                remedy=f"make Limits with {name}={allowed}",
            )
    if limits.page_size * (sizes.index_dim + 4) % 16:
        raise EngineError(
            "pages of this size cannot hold the index cache",
            arrived=limits.page_size,
            allowed=f"page_size x {sizes.index_dim + 4} bytes a multiple of 16",
            remedy="choose a page size of 64",
        )
