"""Built-in graph backends, registered as a stranger's would be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import GraphBackendDescriptor, Requirements, hookimpl
from adaverify_graphs.backends import CudaGraphBackend, EagerBackend

if TYPE_CHECKING:
    import torch


def _eager(device: torch.device) -> EagerBackend:
    return EagerBackend(device)


def _cuda(device: torch.device) -> CudaGraphBackend:
    return CudaGraphBackend(device)


@hookimpl
def adaverify_register_graph_backends() -> Sequence[GraphBackendDescriptor]:
    """Return ``eager`` (any device, no capture) and ``cuda`` (recorded graphs, preferred where it fits)."""
    return (
        GraphBackendDescriptor("eager", Requirements(), captures=False, priority=0, factory=_eager),
        GraphBackendDescriptor(
            "cuda", Requirements(device_types=("cuda", "rocm")), captures=True, priority=10, factory=_cuda
        ),
    )
