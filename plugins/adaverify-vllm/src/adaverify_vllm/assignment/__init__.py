"""Which draft tokens are verified, and vLLM's boundaries that follow."""

from adaverify_vllm.assignment.assigner import BatchAssigner

__all__ = ["BatchAssigner"]
