"""Built-in probes, registered as a stranger's would be."""

from collections.abc import Sequence

from adaverify_capability.probes.torch_matmul import TORCH_MATMUL
from adaverify_capability.probes.triton_prefix_sum import TRITON
from adaverify_contracts import ProbeDescriptor, hookimpl


@hookimpl
def adaverify_register_probes() -> Sequence[ProbeDescriptor]:
    """Return the probes of torch's matrix product and of Triton."""
    return (TORCH_MATMUL, TRITON)
