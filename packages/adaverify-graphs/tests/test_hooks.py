"""The built-in backends register like a stranger's, and importing them touches nothing."""

import subprocess
import sys

import pluggy
import torch

import adaverify_graphs.hooks as hooks
from adaverify_contracts import PROJECT_NAME, Capability, GraphBackend, hookspecs


def test_eager_and_cuda_are_registered():
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(hooks)
    manager.check_pending()
    (found,) = manager.hook.adaverify_register_graph_backends()
    eager, cuda = found
    assert (eager.name, eager.captures, cuda.name, cuda.captures) == ("eager", False, "cuda", True)
    assert cuda.priority > eager.priority
    cpu = Capability("cpu", "cpu", "CPU", None, 1, 0)
    assert eager.requirements.unmet(cpu) == ()
    assert cuda.requirements.unmet(cpu) == ("device type is cpu, needs cuda or rocm",)
    for descriptor in found:
        assert isinstance(descriptor.factory(torch.device("cpu")), GraphBackend)


def test_importing_the_package_loads_no_torch():
    code = "import sys, adaverify_graphs, adaverify_graphs.hooks\nassert 'torch' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
