"""What the plugin declares, where it is chosen, and that declaring does no work."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from adaverify_capability import assume
from adaverify_contracts import GraphSupport, KernelLevel, KernelReport, Limits
from adaverify_runtime import PluginSettings, load_plugins
from adaverify_runtime.selection import select_strategies
from adaverify_sm100_varlen import hooks
from adaverify_sm100_varlen.deep_gemm.versions import HEAD, NEWER, PAIRED

LIMITS = Limits(max_requests=4, draft_tokens=7, max_model_len=300, page_size=64)


def plugins():
    names = ("capability", "reference", "sm90_flatten", "sm100_varlen")
    return load_plugins(
        PluginSettings(), entry_points=[EntryPoint(n, f"adaverify_{n}.hooks", "adaverify") for n in names]
    )


def test_what_is_declared():
    (varlen,) = hooks.adaverify_register_decode_strategies()
    assert (varlen.name, varlen.evidence, varlen.graph_support) == ("varlen", "emulated", GraphSupport.ALWAYS)
    assert varlen.device_lengths


@pytest.mark.parametrize("word", ["sm100", "sm103"])
def test_it_is_chosen_on_these_chips(word):
    found = select_strategies(plugins(), assume(word, ["triton"]), LIMITS, "adaptive", use_graphs=True)
    assert found.ragged.name == "varlen"


@pytest.mark.parametrize("word", ["cpu", "sm90", "sm101", "sm107", "sm120", "sm121", "gfx950"])
def test_no_other_architecture_will_do(word):
    """DeepGEMM #392, #425, #433, #434: neighbours run other code."""
    found = select_strategies(plugins(), assume(word, ["triton"]), LIMITS, "adaptive")
    listed = {candidate.name: candidate.reasons for candidate in found.candidates}
    assert f"architecture is {word}, needs sm100 or sm103" in listed["varlen"]
    assert found.ragged.name != "varlen"


@pytest.mark.parametrize(
    ("version", "contract"), [("", HEAD), ("2.6.1", HEAD), ("2.5.0.post20260629", PAIRED), ("2.8.2", NEWER)]
)
def test_the_schedule_is_the_loaded_builds(version, contract):
    report = KernelReport("deep-gemm-varlen", version, KernelLevel.EXECUTED, "set by the test")
    capability = assume("sm100", ["triton", report])
    assert hooks.contract_of(capability) is contract
    (varlen,) = hooks.adaverify_register_decode_strategies()
    builder = varlen.allocate(LIMITS, torch.device("cpu"), capability)
    assert builder.buffers["schedule"].shape == (capability.processors + 1, 2)


def test_registering_does_no_work():
    code = (
        "import sys\nfrom adaverify_sm100_varlen import hooks\n"
        "hooks.adaverify_register_decode_strategies(), hooks.adaverify_register_probes()\n"
        "assert not {'torch', 'triton', 'deep_gemm', 'adaverify_metadata'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
