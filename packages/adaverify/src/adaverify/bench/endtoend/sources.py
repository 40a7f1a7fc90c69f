"""Where model and records come from: one place that the rest of the benchmark asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adaverify.bench.endtoend.text import Text
from adaverify_contracts import BenchmarkOptions, Capability, Limits
from adaverify_engine.recorded import Body
from adaverify_runtime import PluginManager, Settings

if TYPE_CHECKING:
    from adaverify_engine.sparse_moe import SparseMoeSizes

PAGE_SIZE = {"cuda": 64, "cpu": 4}
"""Cache entries in a page; 64 is what the kernel library for paged logits reads."""


@dataclass(frozen=True, slots=True)
class MadeBody:
    """A model with its caches filled.

    Attributes:
        body: decodes staged tokens.
        table: int32 [max_requests, W], the pages of each request slot.
        facts: sizes and bytes, JSON-ready.
    """

    body: Body
    table: np.ndarray
    facts: Mapping[str, Any]


def model_sizes(options: BenchmarkOptions, settings: Settings) -> SparseMoeSizes:
    """Return the settings' sizes on an accelerator, tiny ones on a CPU."""
    from adaverify_engine.sparse_moe import SparseMoeSizes

    if options.device.startswith("cpu"):
        return SparseMoeSizes.tiny()
    return SparseMoeSizes(**settings.sparse_moe.chosen())


def make_body(
    sizes: SparseMoeSizes,
    limits: Limits,
    device: torch.device,
    plugins: PluginManager,
    capability: Capability,
) -> MadeBody:
    """Make the sparse decoder and fill its caches for every slot of ``limits``."""
    from adaverify_engine.sparse_moe import SparseMoe

    logits = next(
        (
            found.logits(sizes.index_heads, sizes.index_dim, limits.page_size, device)
            for found in (entry.descriptor for entry in plugins.decode_strategies())
            if found.logits is not None and not found.requirements.unmet(capability)
        ),
        None,
    )
    body = SparseMoe(sizes, limits, device, logits=logits)
    table = body.open(limits.max_model_len)
    facts = {"sizes": sizes.as_dict(), "bytes": body.bytes, "paged_logits": logits is not None}
    return MadeBody(body, table.cpu().numpy(), facts)


def load_text() -> Text:
    """Return the records that come with the replay package."""
    from adaverify_replay import AcceptanceRecords

    bundled = AcceptanceRecords.load()
    # Code, chat and prose take turns: few requests then meet all of them in a round.
    records = bundled.take(np.random.default_rng(0).permutation(bundled.sequences))
    source = {**records.header.as_dict(), "digest": bundled.digest, "positions": records.positions}
    return Text(records.scores.astype(np.float32), records.accepted.astype(np.int64), source)
