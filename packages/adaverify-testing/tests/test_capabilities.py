"""A fake capability fits the requirements of the device it stands for."""

import pytest

from adaverify_contracts import KernelLevel, KernelReport, Requirements, UnknownNameError
from adaverify_testing import fake_capability


def test_the_default_is_a_cpu_without_kernels():
    capability = fake_capability()
    assert (capability.device_type, capability.architecture, capability.kernels) == ("cpu", "cpu", ())


def test_named_kernels_are_executed_and_satisfy_a_strategy():
    wanted = Requirements(device_types=("cuda",), architectures=("sm90",), kernels=("paged",))
    assert wanted.unmet(fake_capability("sm90", kernels=["paged"])) == ()
    assert len(wanted.unmet(fake_capability("sm100"))) == 2


def test_levels_and_reports_are_taken_as_they_are():
    levels = fake_capability("sm90", kernels={"paged": KernelLevel.IMPORTED, "triton": KernelLevel.EXECUTED})
    assert [report.level for report in levels.kernels] == [KernelLevel.IMPORTED, KernelLevel.EXECUTED]
    report = KernelReport("paged", "2.5.0", KernelLevel.IMPORTED, "wrong values")
    assert fake_capability("sm90", kernels=[report]).kernel("paged") is report


def test_an_unknown_architecture_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="sm90"):
        fake_capability("sm999")
