"""Graph backends that need nothing but torch."""

from adaverify_graphs.backends.cuda import CudaGraphBackend
from adaverify_graphs.backends.eager import EagerBackend

__all__ = ["CudaGraphBackend", "EagerBackend"]
