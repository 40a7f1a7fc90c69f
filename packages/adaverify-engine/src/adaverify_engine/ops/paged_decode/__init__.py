"""Decode attention over paged KV, driven by the rows of any strategy."""

from adaverify_engine.ops.paged_decode.launch import PagedDecodeScratch, check_geometry, paged_decode
from adaverify_engine.ops.paged_decode.reference import paged_decode_reference

__all__ = ["PagedDecodeScratch", "check_geometry", "paged_decode", "paged_decode_reference"]
