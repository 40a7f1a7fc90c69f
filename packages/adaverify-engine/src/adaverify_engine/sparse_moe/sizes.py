"""Sizes of the sparse mixture-of-experts decoder, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from adaverify_contracts import EngineError

# Kernels hold these in one block, whose size is a power of two; a tensor-core product needs 16.
_POWERS = {"latent": 16, "rope": 16, "index_heads": 1, "index_dim": 32}


@dataclass(frozen=True, slots=True)
class SparseMoeSizes:
    """A decoder as one accelerator of four holds it: its query heads, its quarter of the routed experts.

    The defaults have the published model's attention and router; experts are a quarter as wide in bfloat16,
    which is as many bytes as the whole width in four bits. Weights are 47 GB: 0.97 GB a layer, 0.16 GB of it
    read at every step and 12.6 MB for each local expert that a token chooses. A step of 8 query tokens meets
    about 11 of the 64 in each layer, so it reads 14.5 GB: 3.0 ms at 4.8 TB/s, and some 5 ms at the share of
    that which narrow products reach. About 25 launches in each of 48 layers take 4 to 5 ms more. The
    prediction, made before any run, is 9 to 10 ms.

    Attributes:
        layers: decoder layers.
        hidden: residual width.
        query_rank: width that queries of attention and indexer are projected from.
        heads: query heads of attention, on this accelerator.
        latent: width of an entry's value, and of its key without the rotated part.
        rope: rotated width of queries and keys, in attention and indexer alike.
        index_heads: heads of the indexer.
        index_dim: width of one of them.
        selected: entries that a query token attends to, at most.
        compress_ratio: tokens to one cache entry.
        output_rank: width that attention's result is projected to before ``hidden``.
        experts: routed experts of the whole model.
        local_experts: those of this accelerator, numbers 0 and up.
        active_experts: experts of one token.
        expert_width: inner width of a routed expert.
        shared_width: inner width of the shared expert.
        vocabulary: token ids of this accelerator's share of embedding and head.

    Raises:
        EngineError: a size is out of range; the message names it.
    """

    layers: int = 48
    hidden: int = 4096
    query_rank: int = 1024
    heads: int = 32
    latent: int = 512
    rope: int = 64
    index_heads: int = 64
    index_dim: int = 128
    selected: int = 512
    compress_ratio: int = 4
    output_rank: int = 1024
    experts: int = 256
    local_experts: int = 64
    active_experts: int = 6
    expert_width: int = 512
    shared_width: int = 2048
    vocabulary: int = 32320

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            self._require(isinstance(value, int) and value >= 1, field.name, "an int >= 1")
        for name, lowest in _POWERS.items():
            value = getattr(self, name)
            power = value >= lowest and not value & (value - 1)
            self._require(power, name, f"a power of two >= {lowest}")
        self._require(self.rope < self.index_dim, "rope", f"below index_dim = {self.index_dim}")
        self._require(
            self.local_experts <= self.experts, "local_experts", f"at most experts = {self.experts}"
        )
        self._require(
            self.active_experts <= self.experts, "active_experts", f"at most experts = {self.experts}"
        )
        # Rows of a grouped product start 16 bytes apart or a multiple.
        for name in ("hidden", "query_rank", "expert_width", "shared_width", "output_rank"):
            self._require(getattr(self, name) % 8 == 0, name, "a multiple of 8")

    @classmethod
    def tiny(cls) -> SparseMoeSizes:
        """Return sizes for tests on a CPU: every part is there, a step takes milliseconds."""
        return cls(
            layers=2,
            hidden=64,
            query_rank=32,
            heads=4,
            latent=32,
            rope=16,
            index_heads=8,
            index_dim=32,
            selected=16,
            compress_ratio=4,
            output_rank=32,
            experts=16,
            local_experts=4,
            active_experts=3,
            expert_width=32,
            shared_width=48,
            vocabulary=97,
        )

    @property
    def key(self) -> int:
        """Width of a latent cache entry: what a query head is as wide as."""
        return self.latent + self.rope

    @property
    def mixed(self) -> int:
        """Columns of a layer's first product: query rank, latent entry, index key, index weights."""
        return self.query_rank + self.key + self.index_dim + self.index_heads

    @property
    def wide(self) -> int:
        """Columns of the query product: attention queries, then index queries."""
        return self.heads * self.key + self.index_heads * self.index_dim

    @property
    def cache_entry_bytes(self) -> int:
        """Bytes of one entry in both caches of a layer, with latents in bfloat16."""
        return 2 * self.key + self.index_dim + 4

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        dense = self.hidden * (self.mixed + self.output_rank + self.experts + 3 * self.shared_width)
        dense += self.query_rank * self.wide + self.heads * self.latent * self.output_rank
        return dense + self.local_experts * 3 * self.hidden * self.expert_width

    @property
    def parameters(self) -> int:
        """Weights of the decoder, embedding and head included."""
        return self.layers * self.layer_parameters + 2 * self.vocabulary * self.hidden

    def as_dict(self) -> Mapping[str, int]:
        """Return every size by name, JSON-ready; results carry it."""
        return asdict(self)

    def _require(self, fits: bool, name: str, allowed: str) -> None:
        if not fits:
            raise EngineError(
                f"SparseMoeSizes.{name} is out of range",
                arrived=getattr(self, name),
                allowed=allowed,
                remedy=f"choose {name} accordingly (ADAVERIFY_SPARSE_MOE_{name.upper()})",
            )
