"""Passes over prompts as replays: a graph for each of a few token counts, padded behind the last prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaverify_contracts import GraphKey, Limits, ceil_div
from adaverify_engine.attention import PagedChunks, StepAttention
from adaverify_engine.inputs import TokenInputs, prompt_rows
from adaverify_engine.ops.paged_prefill import PrefillTiles, lay_tiles
from adaverify_engine.scheduler import PrefillChunk

if TYPE_CHECKING:
    from adaverify_engine.executor import Executor
    from adaverify_graphs import CaptureReport
    from adaverify_runtime import GraphedSteps

LEAST = 64
"""Tokens of the smallest graph: on an H200 a decode step of 48 takes 4 % longer than one of 16."""
EVEN = 1024
"""From here on the middles between powers of two are captured, too: a third of a pass is padding at most."""

MOST = 8192
"""Tokens of the largest graph, twice the default chunk: what its pass needs stays in the pool of all graphs.
Larger steps run operation by operation, counted as misses."""


def prompt_sizes(longest: int) -> tuple[int, ...]:
    """Return the token counts to capture, rising, for steps of 1 .. ``longest`` prompt tokens."""
    sizes, size = {longest}, LEAST
    while size < longest:
        sizes.add(size)
        if size >= EVEN and size + size // 2 < longest:
            sizes.add(size + size // 2)
        size *= 2
    return tuple(sorted(sizes))


class PromptGraphs:
    """The model's pass over prompts, captured, with the static tensors that it reads and writes.

    Which tokens decide and what follows from them is not in the graphs. The states of one step are
    overwritten by the next: what is enqueued behind it reads them in time.

    Args:
        executor: runs the pass, with attention by the paged kernel.
        graphs: captures.
    """

    def __init__(self, executor: Executor, graphs: GraphedSteps) -> None:
        options = executor.options
        limits, device = options.limits, executor.cache.data.device
        self._executor, self._page = executor, options.page_size
        self._requests, self._size = limits.max_requests, executor.prompts.tile
        # Padding lies on the null page alone, in tiles that do not reach beyond it.
        self._spare = min(self._size, options.page_size)
        self._longest = min(options.prefill_chunk, limits.max_requests * options.max_model_len, MOST)
        self._limits = Limits(1, self._longest - 1, options.max_model_len, options.page_size)
        self._tokens = torch.zeros(3 * self._longest, dtype=torch.int32, device=device)
        self._tiles = torch.zeros((self._rows(self._longest), 4), dtype=torch.int32, device=device)
        # The row behind the last request names the null page everywhere.
        self._table = torch.zeros((self._requests + 1, limits.table_width), dtype=torch.int32, device=device)
        # Made in the first warm-up, which knows the dtypes.
        self._hidden: torch.Tensor | None = None
        self._features: torch.Tensor | None = None
        buffers = {"tokens": self._tokens, "tiles": self._tiles, "table": self._table}
        self._cache = graphs.for_prompts(self._limits, buffers | {"kv": executor.cache.data})

    def capture(self) -> CaptureReport:
        """Capture every size; one that fails is served by the next larger, or eagerly."""
        sizes = prompt_sizes(self._longest)
        return self._cache.capture_all([self._key(size) for size in sizes], self._make_run)

    def run(
        self, chunks: Sequence[PrefillChunk], table: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Replay the pass over ``chunks``; return hidden states and features of their tokens, or None.

        None, counted by reason, where no captured size serves them.

        Args:
            chunks: at least one, none of them of the same request as another.
            table: int32 [max_requests, W], the host's block table by slot.
        """
        tokens = sum(chunk.length for chunk in chunks)
        key = self._cache.match(self._key(tokens))
        if key is None or self._hidden is None:
            return None
        self._load(chunks, table, key.tokens)
        self._cache.replay(key)
        return self._hidden[:tokens], None if self._features is None else self._features[:tokens]

    def _key(self, tokens: int) -> GraphKey:
        return GraphKey(tokens, 1, self._limits.max_query_len, self._limits.table_width)

    def _rows(self, tokens: int) -> int:
        """Return the most tiles of ``tokens``: full ones, and one more for each prompt and the padding."""
        return ceil_div(tokens, self._spare) + min(tokens, self._requests) + 1

    def _load(self, chunks: Sequence[PrefillChunk], table: np.ndarray, room: int) -> None:
        """Write what the graph of ``room`` tokens reads; nothing is waited for."""
        rows = prompt_rows(chunks, table, self._page, room)
        self._send(self._tokens, rows.astype(np.int32).ravel())
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int32)
        lengths = np.array([chunk.length for chunk in chunks], dtype=np.int32)
        left = room - int(lengths.sum())
        padding = np.full(ceil_div(left, self._spare), self._spare, dtype=np.int32)
        if left:
            padding[-1] = left - self._spare * (len(padding) - 1)
        tiles = np.zeros((self._rows(room), 4), dtype=np.int32)
        laid = lay_tiles(
            np.concatenate((starts, np.zeros_like(padding))), np.concatenate((lengths, padding)), self._size
        )
        laid[laid[:, 3] >= len(chunks), 3] = self._requests
        tiles[: len(laid)] = laid
        self._send(self._tiles, tiles)
        if chunks:
            self._send(self._table, table[[chunk.request.slot for chunk in chunks]])

    @staticmethod
    def _send(to: torch.Tensor, values: np.ndarray) -> None:
        host = torch.from_numpy(values)
        if to.is_cuda:
            host = host.pin_memory()
        to[: len(values)].copy_(host, non_blocking=True)

    def _make_run(self, key: GraphKey) -> Callable[[], None]:
        # What is captured runs before: over padding, and not over what another size left behind.
        self._load((), np.zeros((0, self._table.shape[1]), dtype=np.int32), key.tokens)
        return partial(self._enqueue, key.tokens)

    def _enqueue(self, tokens: int) -> None:
        """Run the pass over the first ``tokens`` tokens of the static tensors; launches only."""
        executor = self._executor
        ids, positions, slots = self._tokens[: 3 * tokens].view(3, tokens).long()
        tiles = PrefillTiles(self._tiles[: self._rows(tokens)], self._table, tokens, self._size)
        chunks = (PagedChunks(tiles, executor.cache),)
        attend = StepAttention(executor.cache, slots, None, 0, chunks, executor.group)
        hidden, features = executor.states(TokenInputs(ids, positions, slots), attend)
        if self._hidden is None:
            # The hidden states last: they are what says that there is room for both.
            self._features = (
                None if features is None else features.new_zeros((self._longest, features.shape[1]))
            )
            self._hidden = hidden.new_zeros((self._longest, hidden.shape[1]))
        self._hidden[:tokens].copy_(hidden)
        if self._features is not None and features is not None:
            self._features[:tokens].copy_(features)
