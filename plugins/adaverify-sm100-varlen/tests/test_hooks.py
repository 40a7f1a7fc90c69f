"""What the plugin declares, where it is chosen, and that declaring does no work."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from adaverify_capability import assume
from adaverify_contracts import GraphSupport, KernelLevel, KernelReport, Limits
from adaverify_metadata import VarlenRowBuilder
from adaverify_runtime import PluginSettings, load_plugins
from adaverify_runtime.selection import select_strategies
from adaverify_sm100_varlen import hooks
from adaverify_sm100_varlen.deep_gemm.versions import HEAD, NEWER, PAIRED
from adaverify_sm100_varlen.schedule import make_schedule, reference_schedule

LIMITS = Limits(max_requests=4, draft_tokens=7, max_model_len=300, page_size=64)


def plugins():
    names = ("capability", "reference", "sm90_flatten", "sm100_varlen")
    return load_plugins(
        PluginSettings(), entry_points=[EntryPoint(n, f"adaverify_{n}.hooks", "adaverify") for n in names]
    )


def test_what_is_declared():
    varlen, uniform = hooks.adaverify_register_decode_strategies()
    assert (uniform.name, uniform.evidence, uniform.device_lengths) == ("uniform-varlen", "emulated", False)
    assert (varlen.name, varlen.evidence, varlen.graph_support) == ("varlen", "emulated", GraphSupport.ALWAYS)
    assert varlen.device_lengths


@pytest.mark.parametrize("word", ["sm100", "sm103"])
def test_it_is_chosen_on_these_chips(word):
    found = select_strategies(plugins(), assume(word, ["triton"]), LIMITS, "adaptive", use_graphs=True)
    assert (found.ragged.name, found.uniform.name) == ("varlen", "uniform-varlen")


@pytest.mark.parametrize("word", ["cpu", "sm90", "sm101", "sm107", "sm120", "sm121", "gfx950"])
def test_no_other_architecture_will_do(word):
    """DeepGEMM #392, #425, #433, #434: neighbours run other code, and are told so."""
    found = select_strategies(plugins(), assume(word, ["triton"]), LIMITS, "adaptive")
    listed = {candidate.name: candidate.reasons for candidate in found.candidates}
    (why,) = (reason for reason in listed["varlen"] if reason.startswith("architecture is"))
    needed, _, refusal = why.partition(": ")
    assert needed == f"architecture is {word}, needs sm100 or sm103"
    explained = {"sm101": "no proof", "sm107": "no proof", "sm120": "open fault", "sm121": "open fault"}
    assert explained.get(word, "") in refusal
    assert bool(refusal) == (word in explained)
    assert found.ragged.name != "varlen"


@pytest.mark.parametrize(
    ("version", "contract"), [("", HEAD), ("2.6.1", HEAD), ("2.5.0.post20260629", PAIRED), ("2.8.2", NEWER)]
)
def test_the_schedule_is_the_loaded_builds(version, contract):
    report = KernelReport("deep-gemm-varlen", version, KernelLevel.EXECUTED, "set by the test")
    capability = assume("sm100", ["triton", report])
    assert hooks.contract_of(capability) is contract
    varlen, _ = hooks.adaverify_register_decode_strategies()
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


def test_limits_beyond_the_schedule_kernel_are_a_reason():
    """Said before anything is allocated."""
    large = Limits(max_requests=2049, draft_tokens=7, max_model_len=300, page_size=64)
    found = select_strategies(plugins(), assume("sm100", ["triton"]), large, "adaptive")
    assert found.ragged.name == "reference"
    reasons = {candidate.name: candidate.reasons for candidate in found.candidates}
    assert reasons["varlen"] == (
        "2049 requests of 8 query tokens are 16392 rows; the schedule kernel holds 16384",
    )


@pytest.mark.parametrize("rule", [HEAD, PAIRED, NEWER], ids=lambda contract: contract.name)
def test_every_contracts_schedule_is_a_launch(kit, rule):
    """What ALWAYS promises: nothing is allocated and nothing waits, whichever build is loaded."""
    if torch.cuda.is_available():
        pytest.skip("the device tests do this compiled")
    schedule = make_schedule(rule, LIMITS, "cpu", 7, backend="triton")
    rows = VarlenRowBuilder("varlen", LIMITS, "cpu", backend="torch").build(
        kit.batch([3, 0, 5, 1], [290, 0, 60, 1], 12, LIMITS)
    )
    want = reference_schedule(rule, rows.schedule_lens, 7, rows.request_indices)
    assert schedule._launch is not None
    schedule.schedule.fill_(-77777)
    assert torch.equal(schedule.build(rows.schedule_lens, rows.request_indices), want)
