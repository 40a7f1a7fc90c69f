"""Decode rows for Hopper behind vLLM's sparse-attention indexer."""

from adaverify_vllm.rows.seam import wrap

__all__ = ["wrap"]
