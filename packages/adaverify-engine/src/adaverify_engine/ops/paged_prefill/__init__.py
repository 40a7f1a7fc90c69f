"""Causal attention of prompt chunks over paged KV, all chunks of a step in one launch."""

from adaverify_engine.ops.paged_prefill.launch import check_geometry, paged_prefill, shape_of
from adaverify_engine.ops.paged_prefill.reference import paged_prefill_reference
from adaverify_engine.ops.paged_prefill.tiles import Piece, PrefillTiles, lay_tiles, plan_tiles

__all__ = [
    "Piece",
    "PrefillTiles",
    "check_geometry",
    "lay_tiles",
    "paged_prefill",
    "paged_prefill_reference",
    "plan_tiles",
    "shape_of",
]
