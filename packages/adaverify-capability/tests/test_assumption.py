"""Every path is selectable on a machine without the hardware."""

import pytest

from adaverify_capability import ARCHITECTURES, assume
from adaverify_contracts import KernelLevel, KernelReport, Requirements, UnknownNameError


@pytest.mark.parametrize("word", sorted(ARCHITECTURES))
def test_every_word_can_be_assumed_and_says_so(word):
    capability = assume(word)
    assert capability.architecture == word
    assert capability.assumed
    assert capability.compute_capability == ARCHITECTURES[word].compute_capability
    assert Requirements(architectures=(word,)).unmet(capability) == ()


def test_kernels_are_assumed_by_name_or_by_report():
    report = KernelReport("paged", "1.0", KernelLevel.IMPORTED, "only imported")
    capability = assume("sm90", kernels=["triton", report])
    assert capability.kernel("triton").level is KernelLevel.EXECUTED
    assert "nothing ran" in capability.kernel("triton").reason
    assert capability.kernel("paged") is report


def test_an_unknown_word_lists_the_known_ones():
    with pytest.raises(UnknownNameError) as caught:
        assume("hopper")
    assert "sm90" in caught.value.known
    assert "hopper" in str(caught.value)


def test_all_unmet_conditions_are_reported_together():
    """No backend and uniform support only: the second check failed once the first was cured, vllm #56620."""
    wanted = Requirements(
        device_types=("cuda",),
        architectures=("sm90",),
        kernels=("paged", "triton"),
        modules=("no_such_module",),
    )
    reasons = wanted.unmet(assume("cpu"))
    assert len(reasons) == 5
    assert [word in " ".join(reasons) for word in ("cuda", "sm90", "paged", "triton", "no_such_module")] == [
        True
    ] * 5
