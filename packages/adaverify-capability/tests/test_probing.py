"""Probes are executed once, and nothing they do escapes as an error."""

import pytest

from adaverify_capability import assume, probe, run_probe
from adaverify_capability.hooks import adaverify_register_probes
from adaverify_contracts import (
    Capability,
    CapabilityError,
    DescriptorError,
    KernelLevel,
    KernelReport,
    ProbeDescriptor,
    UnknownNameError,
)

ANY = ("cpu", "cuda", "rocm")


def _good(name="paged"):
    return KernelReport(name, "1.0", KernelLevel.EXECUTED, "ran")


def test_the_built_in_probes_execute_a_matrix_product_and_only_import_triton_on_a_cpu():
    capability = probe("cpu", adaverify_register_probes(), refresh=True)
    assert capability.kernel("torch-matmul").level is KernelLevel.EXECUTED
    triton = capability.kernel("triton")
    assert triton.level in (KernelLevel.ABSENT, KernelLevel.IMPORTED)
    assert "nothing was executed" in triton.reason or "ModuleNotFoundError" in triton.reason


def test_a_device_is_probed_once_a_process_and_again_on_request():
    calls = []

    def count(facts):
        calls.append(facts)
        return _good()

    descriptor = ProbeDescriptor("paged", ANY, count)
    first = probe("cpu", [descriptor])
    assert probe("cpu", [descriptor]) is first
    assert len(calls) == 1
    probe("cpu", [descriptor], refresh=True)
    assert len(calls) == 2
    assert calls[0].kernels == ()


def test_another_probe_of_the_same_name_does_not_read_the_first_ones_result():
    first = probe("cpu", [ProbeDescriptor("paged", ANY, lambda facts: _good())])
    bad = KernelReport("paged", "2.0", KernelLevel.IMPORTED, "wrong values")
    second = probe("cpu", [ProbeDescriptor("paged", ANY, lambda facts: bad)])
    assert first.kernel("paged").level is KernelLevel.EXECUTED
    assert second.kernel("paged") is bad


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AssertionError(), "AssertionError: no message"),
        (ModuleNotFoundError("No module named 'paged'"), "ModuleNotFoundError: No module named 'paged'"),
        (OSError("undefined\n  symbol: c10"), "OSError: undefined symbol: c10"),
        (RuntimeError("Assertion error (file:1): x"), "RuntimeError: Assertion error (file:1): x"),
    ],
)
def test_an_error_becomes_the_reason_with_type_and_text(error, reason):
    """The imports of one kernel library raise all of these, one with no text (DeepGEMM on CPUs)."""

    def fail(facts):
        raise error

    report = run_probe(ProbeDescriptor("paged", ANY, fail), assume("cpu"))
    assert report == KernelReport("paged", "", KernelLevel.ABSENT, reason)


def test_a_long_error_is_cut():
    def fail(facts):
        raise RuntimeError("x" * 5000)

    report = run_probe(ProbeDescriptor("paged", ANY, fail), assume("cpu"))
    assert len(report.reason) == 400
    assert report.reason.endswith(" ...")


def test_a_keyboard_interrupt_is_not_swallowed():
    def stop(facts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_probe(ProbeDescriptor("paged", ANY, stop), assume("cpu"))


@pytest.mark.parametrize("result", [None, True, "fine", _good("other")])
def test_a_probe_that_returns_something_else_proves_nothing(result):
    report = run_probe(ProbeDescriptor("paged", ANY, lambda facts: result), assume("cpu"))
    assert report.level is KernelLevel.ABSENT
    assert report.name == "paged"


def test_a_probe_for_another_device_type_is_not_run():
    def never(facts):
        raise AssertionError("ran")

    report = run_probe(ProbeDescriptor("paged", ("cuda", "rocm"), never), assume("cpu"))
    assert report.reason == "runs on cuda or rocm only, this device is cpu"


def test_one_failing_probe_leaves_the_others_alone():
    def fail(facts):
        raise RuntimeError("broken")

    probes = [ProbeDescriptor("first", ANY, fail), ProbeDescriptor("second", ANY, lambda f: _good("second"))]
    capability = probe("cpu", probes)
    assert [report.level for report in capability.kernels] == [KernelLevel.ABSENT, KernelLevel.EXECUTED]


def test_two_probes_of_one_name_are_refused_before_anything_runs():
    calls = []
    twice = ProbeDescriptor("paged", ANY, lambda facts: calls.append(1))
    with pytest.raises(DescriptorError, match="paged"):
        probe("cpu", [twice, twice])
    assert calls == []


def test_injected_facts_make_every_path_reachable():
    def hopper(device):
        return Capability("cuda", "sm90", f"fake {device}", (9, 0), 132, 0)

    seen = []

    def record(facts):
        seen.append(facts.architecture)
        return _good()

    capability = probe("cuda:3", [ProbeDescriptor("paged", ("cuda",), record)], facts=hopper)
    assert (capability.device_name, seen) == ("fake cuda:3", ["sm90"])
    assert capability.kernel("paged").level is KernelLevel.EXECUTED
    assert not capability.assumed


def test_an_override_on_a_machine_without_the_device_runs_nothing_and_says_so():
    def never(facts):
        raise AssertionError("ran")

    for device in ("cpu", "cuda:99"):
        capability = probe(device, [ProbeDescriptor("paged", ("cuda",), never)], override="sm90")
        assert capability.architecture == "sm90"
        assert capability.assumed
        report = capability.kernel("paged")
        assert report.level is KernelLevel.ABSENT
        assert report.reason == "not executed: sm90 is assumed and no cuda device is at hand"


def test_an_override_of_the_same_device_type_still_executes_on_the_real_device():
    def real(device):
        return Capability("cuda", "unknown", "new part", (9, 5), 160, 1)

    capability = probe(
        "cuda", [ProbeDescriptor("paged", ("cuda",), lambda facts: _good())], override="sm90", facts=real
    )
    assert (capability.architecture, capability.compute_capability) == ("sm90", (9, 0))
    assert (capability.device_name, capability.processors, capability.assumed) == ("new part", 160, True)
    assert capability.kernel("paged").level is KernelLevel.EXECUTED


def test_a_bad_override_and_a_missing_device_are_errors():
    with pytest.raises(UnknownNameError):
        probe("cpu", [], override="blackwell")
    with pytest.raises(CapabilityError):
        probe("cuda:99", [])


def test_the_hooks_satisfy_the_specification():
    import pluggy

    import adaverify_capability.hooks as hooks
    from adaverify_contracts import PROJECT_NAME, hookspecs

    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(hooks)
    manager.check_pending()
    (found,) = manager.hook.adaverify_register_probes()
    assert [item.name for item in found] == ["torch-matmul", "triton"]


def test_a_neighbouring_architecture_is_not_probed_and_nothing_is_imported(tmp_path, monkeypatch):
    """flash-attention #2529, DeepGEMM #425: a family is no proof; the exact word decides."""
    (tmp_path / "kernel_library_a.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    descriptor = ProbeDescriptor(
        "paged", ANY, lambda facts: _good(), architectures=("sm90",), isolated_imports=("kernel_library_a",)
    )
    report = run_probe(descriptor, assume("sm120"))
    assert report.level is KernelLevel.ABSENT
    assert report.reason == "runs on sm90 only, this device is sm120"
    assert not (tmp_path / "imported").exists()


def test_an_import_that_dies_in_the_child_is_not_tried_here(tmp_path, monkeypatch):
    """A binary for another torch: the child process dies of it, this one reports why."""
    (tmp_path / "kernel_library_b.py").write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(tmp_path)
    calls = []
    descriptor = ProbeDescriptor("paged", ANY, calls.append, isolated_imports=("kernel_library_b",))
    report = run_probe(descriptor, assume("cpu"))
    assert report.level is KernelLevel.ABSENT
    assert "died of SIGABRT while importing kernel_library_b" in report.reason
    assert calls == []


def test_a_module_that_imports_in_the_child_is_probed(tmp_path, monkeypatch):
    (tmp_path / "kernel_library_c.py").write_text("__version__ = '1'\n")
    monkeypatch.syspath_prepend(tmp_path)
    descriptor = ProbeDescriptor("paged", ANY, lambda facts: _good(), isolated_imports=("kernel_library_c",))
    assert run_probe(descriptor, assume("cpu")) == _good()
