"""Device facts come from torch, and importing the package touches no device."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from adaverify_capability import device_facts
from adaverify_capability.facts import accelerator_facts
from adaverify_contracts import CapabilityError


def test_the_cpu_is_read_as_it_is():
    facts = device_facts("cpu")
    assert (facts.device_type, facts.architecture, facts.compute_capability) == ("cpu", "cpu", None)
    assert facts.processors >= 1
    assert facts.memory_bytes > 0
    assert facts.device_name
    assert facts.version("torch") == torch.__version__
    assert not facts.assumed
    assert facts.kernels == ()


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99", ""])
def test_a_device_that_is_not_here_is_an_error_listing_what_is(device):
    with pytest.raises(CapabilityError) as caught:
        device_facts(device)
    assert caught.value.arrived == device
    assert "cpu" in caught.value.allowed
    assert caught.value.remedy


def _properties(**changed):
    fields = {
        "name": "NVIDIA H200",
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": 150_000_000_000,
        "gcnArchName": "",
    }
    return SimpleNamespace(**{**fields, **changed})


def test_a_cuda_device_is_known_by_its_compute_capability():
    facts = accelerator_facts(_properties(), torch_version="2.11.0", cuda_version="13.0", hip_version=None)
    assert (facts.device_type, facts.architecture, facts.compute_capability) == ("cuda", "sm90", (9, 0))
    assert (facts.device_name, facts.processors) == ("NVIDIA H200", 132)
    assert facts.version("cuda") == "13.0"
    assert facts.version("hip") == ""


def test_a_rocm_device_is_known_by_its_gcn_name_and_has_no_compute_capability():
    """torch reports (9, 4) for gfx942 and (9, 0) for gfx90a; the latter must not become sm90."""
    properties = _properties(
        name="AMD MI250X", gcnArchName="gfx90a:sramecc+:xnack-", multi_processor_count=110
    )
    facts = accelerator_facts(properties, torch_version="2.11.0", cuda_version=None, hip_version="6.4")
    assert (facts.device_type, facts.architecture, facts.compute_capability) == ("rocm", "gfx90a", None)
    assert facts.version("hip") == "6.4"


def test_an_unlisted_device_is_unknown_and_never_rounded():
    facts = accelerator_facts(
        _properties(major=9, minor=5), torch_version="2.11.0", cuda_version="13.0", hip_version=None
    )
    assert facts.architecture == "unknown"
    assert facts.compute_capability == (9, 5)


def test_importing_the_package_and_its_hooks_loads_neither_torch_nor_triton():
    code = (
        "import sys, adaverify_capability, adaverify_capability.hooks as hooks\n"
        "assert len(hooks.adaverify_register_probes()) == 2\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_reading_the_cpu_leaves_cuda_uninitialised():
    code = (
        "import adaverify_capability, torch\n"
        "adaverify_capability.device_facts('cpu')\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
