"""Let the target write: thousands of sequences at once over a static cache, one captured step per length."""

from __future__ import annotations

import torch
from torch.nn import functional

from drafter_training.target import DenseTarget

_BUCKET = 64
"""Attention reads the cache up to the next multiple of this; one graph each."""


class Writer:
    """Continue prompts to a fixed width, each row greedy or sampled at its own temperature.

    All rows stand at the same position, so there is no padding to mask: a row that is still inside its prompt
    reads its own prompt instead of what it would write. Rows before the last ``sampled`` are greedy.

    Args:
        target: the model.
        rows: sequences at once.
        width: positions of a sequence, prompt included.
        sampled: the last ``sampled`` rows are drawn, the others greedy.
    """

    def __init__(self, target: DenseTarget, rows: int, width: int, sampled: int) -> None:
        config, device = target.config, target.device
        self._target = target
        self._rows, self._width, self._sampled = rows, width, sampled
        self._bucket = min(_BUCKET, width)
        shape = (config.layers, rows, config.kv_heads, width, config.head_dim)
        self._keys = torch.zeros(shape, dtype=target.weights.embedding.dtype, device=device)
        self._values = torch.zeros_like(self._keys)
        self.tokens = torch.zeros(rows, width + 1, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self._temperature = torch.ones(sampled, 1, dtype=torch.float32, device=device)
        self._calm = torch.zeros(sampled, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._columns = torch.arange(width, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @torch.no_grad()
    def write(
        self,
        prompts: torch.Tensor,
        lengths: torch.Tensor,
        temperature: torch.Tensor,
        seed: int,
        calm: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return int64 [rows, width], prompts included.

        Args:
            prompts: int64 [rows, width], anything behind a prompt's length.
            lengths: int64 [rows], at least 1.
            temperature: float32 [sampled], of the last rows.
            seed: of the draws.
            calm: int64 [sampled], position from which a drawn row is greedy; None draws to the end.
        """
        torch.manual_seed(seed)
        self.tokens[:, : self._width].copy_(prompts)
        self._lengths.copy_(lengths)
        self._temperature.copy_(temperature.view(-1, 1))
        if calm is None:
            self._calm.fill_(self._width)
        else:
            self._calm.copy_(calm)
        self._at.zero_()
        for position in range(self._width - 1):
            self._advance(min(-(-(position + 1) // self._bucket) * self._bucket, self._width))
        return self.tokens[:, : self._width].clone()

    def capture(self) -> None:
        """Capture every step on a CUDA device; does nothing elsewhere. Contents of the buffers are lost."""
        if self._target.device.type != "cuda" or self._graphs:
            return
        ends = [*range(self._bucket, self._width, self._bucket), self._width]
        pool = torch.cuda.graph_pool_handle()
        for reach in reversed(ends):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._at.zero_()
                self._step(reach)
            torch.cuda.current_stream().wait_stream(stream)
            self._at.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._step(reach)
            self._graphs[reach] = graph

    def _advance(self, reach: int) -> None:
        if reach in self._graphs:
            self._graphs[reach].replay()
        else:
            self._step(reach)

    @torch.no_grad()
    def _step(self, reach: int) -> None:
        target, config = self._target, self._target.config
        tokens = self.tokens.index_select(1, self._at).squeeze(1)
        hidden = functional.embedding(tokens, target.weights.embedding)
        turns = target.turns.index_select(0, self._at)
        hide = (self._columns[:reach] > self._at).float() * -1e9
        group = config.heads // config.kv_heads
        for index, layer in enumerate(target.weights.layers):
            query, key, value = target.project(layer, hidden, turns)
            self._keys[index].index_copy_(2, self._at, key.unsqueeze(2))
            self._values[index].index_copy_(2, self._at, value.unsqueeze(2))
            grouped = query.reshape(self._rows, config.kv_heads, group, config.head_dim)
            scores = grouped @ self._keys[index, :, :, :reach].transpose(-1, -2)
            weights = (scores.float() * config.head_dim**-0.5 + hide).softmax(-1).to(value.dtype)
            mixed = weights @ self._values[index, :, :, :reach]
            hidden = target.finish(layer, hidden, mixed.flatten(1))
        self._append(target.weights.head(target.norm(hidden, target.weights.last_norm)))

    def _append(self, logits: torch.Tensor) -> None:
        drawn = self._rows - self._sampled
        chosen = logits[:drawn].argmax(-1)
        if self._sampled:
            # The largest of logits plus Gumbel noise is a draw from their softmax.
            noise = torch.empty_like(logits[drawn:], dtype=torch.float32).exponential_().log_()
            noise *= (self._at + 1 < self._calm).float().unsqueeze(1)
            scaled = logits[drawn:].float() / self._temperature - noise
            chosen = torch.cat([chosen, scaled.argmax(-1)])
        self._at.add_(1)
        given = self.tokens.index_select(1, self._at).squeeze(1)
        kept = torch.where(self._at < self._lengths, given, chosen)
        self.tokens.index_copy_(1, self._at, kept.unsqueeze(1))
