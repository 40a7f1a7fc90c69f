"""Attention over the paged cache: decode rows, prefill chunks and the reference for both."""

from adaverify_engine.attention.cells import QueryCells, locate
from adaverify_engine.attention.decode import DecodeAttention
from adaverify_engine.attention.paged import DecodeAttentionChoice, PagedDecodeAttention
from adaverify_engine.attention.prefill import ChunkAttention
from adaverify_engine.attention.prompts import PagedChunks, PromptAttentionChoice
from adaverify_engine.attention.reference import attend_rows
from adaverify_engine.attention.step import StepAttention
from adaverify_engine.attention.uniform import ContextRows

__all__ = [
    "ChunkAttention",
    "ContextRows",
    "DecodeAttention",
    "DecodeAttentionChoice",
    "PagedChunks",
    "PagedDecodeAttention",
    "PromptAttentionChoice",
    "QueryCells",
    "StepAttention",
    "attend_rows",
    "locate",
]
