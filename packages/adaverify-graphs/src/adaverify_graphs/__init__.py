"""Decode graphs: which sizes to capture, the buffers they are tied to, capture, dispatch and replay."""

from adaverify_graphs.backends import CudaGraphBackend, EagerBackend
from adaverify_graphs.buffers import BufferSet
from adaverify_graphs.cache import GraphCache, MakeRun, Progress
from adaverify_graphs.families import Families, bare_keys, choose_families, is_bare
from adaverify_graphs.ladder import Ladder, choose_ladder
from adaverify_graphs.modes import GraphMode, resolve_mode
from adaverify_graphs.report import CaptureFailure, CaptureReport
from adaverify_graphs.shapes import batch_key, capture_query_lens, check_key, decode_flags, graph_keys

__all__ = [
    "BufferSet",
    "CaptureFailure",
    "CaptureReport",
    "CudaGraphBackend",
    "EagerBackend",
    "Families",
    "GraphCache",
    "GraphMode",
    "Ladder",
    "MakeRun",
    "Progress",
    "bare_keys",
    "batch_key",
    "capture_query_lens",
    "check_key",
    "choose_families",
    "choose_ladder",
    "decode_flags",
    "graph_keys",
    "is_bare",
    "resolve_mode",
]
