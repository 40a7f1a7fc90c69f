"""Hopper: decode rows of one or two query tokens, and the paged-MQA kernel that reads them."""

from adaverify_sm90_flatten.decision import NATIVE_QUERY_ROWS, Flattening, use_flattening

__all__ = [
    "NATIVE_QUERY_ROWS",
    "Flattening",
    "use_flattening",
]
