"""Built-in probes: a tiny problem each, with an answer worked out in plain Python."""

from adaverify_capability.probes.comparison import compared
from adaverify_capability.probes.torch_matmul import TORCH_MATMUL
from adaverify_capability.probes.triton_prefix_sum import TRITON

__all__ = ["TORCH_MATMUL", "TRITON", "compared"]
