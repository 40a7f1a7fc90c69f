"""What one device really does: facts, and kernels executed against known answers."""

from adaverify_capability.architectures import ARCHITECTURES, CPU, UNKNOWN, Architecture, architecture_of
from adaverify_capability.assumption import assume
from adaverify_capability.facts import FactsProvider, device_facts
from adaverify_capability.isolation import IsolatedResult, run_isolated
from adaverify_capability.probes import TORCH_MATMUL, TRITON, compared
from adaverify_capability.probing import probe, reason_of, run_probe

__all__ = [
    "ARCHITECTURES",
    "CPU",
    "TORCH_MATMUL",
    "TRITON",
    "UNKNOWN",
    "Architecture",
    "FactsProvider",
    "IsolatedResult",
    "architecture_of",
    "assume",
    "compared",
    "device_facts",
    "probe",
    "reason_of",
    "run_isolated",
    "run_probe",
]
