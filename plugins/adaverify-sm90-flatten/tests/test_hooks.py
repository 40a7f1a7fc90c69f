"""What the plugin declares, and that declaring does no work."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from adaverify_capability import assume
from adaverify_contracts import Capability, GraphSupport, KernelLevel, KernelReport, Limits, NoStrategyError
from adaverify_runtime import PluginSettings, load_plugins
from adaverify_runtime.selection import select_strategies
from adaverify_sm90_flatten import hooks
from adaverify_testing import isolated_manager

LIMITS = Limits(max_requests=4, draft_tokens=7, max_model_len=300, page_size=64)
PLUGINS = {
    "capability": "adaverify_capability.hooks",
    "reference": "adaverify_reference.hooks",
    "sm90-flatten": "adaverify_sm90_flatten.hooks",
}


@pytest.fixture
def strategies():
    return {item.name: item for item in hooks.adaverify_register_decode_strategies()}


@pytest.fixture
def plugins():
    points = [EntryPoint(name, value, "adaverify") for name, value in PLUGINS.items()]
    return load_plugins(PluginSettings(), entry_points=points)


def test_what_is_declared(strategies):
    """Ragged strategies read device lengths and replay any lengths; the uniform one claims neither."""
    assert list(strategies) == ["flatten", "paired", "uniform-native"]
    for name in ("flatten", "paired"):
        assert (
            strategies[name].device_lengths and strategies[name].graph_support is GraphSupport.VARLEN_DECODE
        )
    uniform = strategies["uniform-native"]
    assert not uniform.device_lengths and uniform.graph_support is GraphSupport.UNIFORM_BATCH
    assert strategies["flatten"].priority > strategies["paired"].priority > 0


def test_the_hooks_are_known_and_the_probe_is_registered():
    manager = isolated_manager(hooks)
    ((probe,),) = manager.hook.adaverify_register_probes()
    assert (probe.name, probe.architectures, probe.isolated_imports) == (
        "deep-gemm",
        ("sm90",),
        ("deep_gemm",),
    )


def test_the_benchmark_needs_this_card_and_the_library_proven_on_it():
    """No times where DeepGEMM was not executed, however well the card fits."""
    (logits,) = hooks.adaverify_register_benchmarks()
    assert logits.name == "logits"
    assert logits.requirements.unmet(assume("sm90", kernels=("triton", "deep-gemm"))) == ()
    (reason,) = logits.requirements.unmet(assume("sm90", kernels=("triton",)))
    assert "deep-gemm" in reason
    assert logits.requirements.unmet(assume("cpu"))


@pytest.mark.parametrize("word", ["cpu", "sm80", "sm89", "sm100", "sm103", "sm120", "sm121", "gfx942"])
def test_no_other_architecture_will_do(strategies, word):
    """flash-attention #2529: a family is no proof, not even with a working Triton."""
    for descriptor in strategies.values():
        reasons = descriptor.requirements.unmet(assume(word, kernels=["triton"]))
        assert any(f"architecture is {word}" in reason for reason in reasons)


def test_triton_must_have_been_executed_and_deep_gemm_need_not(strategies):
    imported = KernelReport("triton", "3", KernelLevel.IMPORTED, "wrong values")
    for descriptor in strategies.values():
        assert descriptor.requirements.unmet(assume("sm90", kernels=["triton"])) == ()
        (reason,) = descriptor.requirements.unmet(assume("sm90", kernels=[imported]))
        assert "kernel triton is imported, needs executed: wrong values" in reason


def test_they_are_chosen_on_this_chip_and_the_reference_elsewhere(plugins):
    here = select_strategies(plugins, assume("sm90", ["triton"]), LIMITS, "adaptive", use_graphs=True)
    assert (here.ragged.name, here.uniform.name) == ("flatten", "uniform-native")
    there = select_strategies(plugins, assume("sm100", ["triton"]), LIMITS, "adaptive", use_graphs=True)
    assert (there.ragged.name, there.uniform.name) == ("reference", "uniform")
    listed = {candidate.name: candidate.reasons for candidate in there.candidates}
    assert listed["flatten"] == ("architecture is sm100, needs sm90",)


def test_paired_can_be_named_and_is_refused_elsewhere_with_all_reasons(plugins):
    """vllm #47808: names the chip, the chip needed and what to do."""
    found = select_strategies(plugins, assume("sm90", ["triton"]), LIMITS, "adaptive", "paired")
    assert found.ragged.name == "paired"
    with pytest.raises(NoStrategyError) as caught:
        select_strategies(plugins, assume("cpu"), LIMITS, "adaptive", "paired")
    reasons = caught.value.reasons["paired"]
    assert [reason.split()[0] for reason in reasons] == ["device", "architecture", "kernel"]


def test_limits_beyond_the_schedule_kernel_are_a_reason(plugins):
    """Said before anything is allocated."""
    large = Limits(max_requests=2049, draft_tokens=7, max_model_len=300, page_size=64)
    found = select_strategies(plugins, assume("sm90", ["triton"]), large, "adaptive")
    assert found.ragged.name == "reference"
    reasons = {candidate.name: candidate.reasons for candidate in found.candidates}
    assert reasons["flatten"] == (
        "2049 requests of 8 query tokens are 16392 rows; the schedule kernel holds 16384",
    )


def test_registering_does_no_work():
    """Neither torch nor Triton nor DeepGEMM is imported by the hooks."""
    code = (
        "import sys\n"
        "from adaverify_sm90_flatten import hooks\n"
        "assert len(hooks.adaverify_register_decode_strategies()) == 3\n"
        "assert len(hooks.adaverify_register_probes()) == 1\n"
        "assert not {'torch', 'triton', 'deep_gemm', 'adaverify_metadata'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["flatten", "paired", "uniform-native"])
def test_builders_carry_a_schedule_for_every_processor(strategies, kit, name):
    """In the interpreter on a CPU: the kernels themselves run, and the device's processor count counts."""
    if torch.cuda.is_available():
        pytest.skip("the device tests do this compiled")
    seven = Capability("cuda", "sm90", "a card", (9, 0), 7, 0, assumed=True)
    builder = strategies[name].allocate(LIMITS, torch.device("cpu"), seven)
    uniform = 3 if name == "uniform-native" else None
    rows = builder.build(kit.batch([3, 3, 0], [5, 200, 0], 8, LIMITS, uniform=uniform))
    assert rows.strategy == builder.strategy == name
    assert rows.schedule.shape == (8, 2)
    # It ends behind the rows of the six real tokens.
    assert rows.schedule[-1].tolist() == [int((rows.row_lens[:, -1] > 0).sum()), 0]
