"""A probe that kills its process is an absent kernel with the signal as its reason."""

import importlib
import os
import signal

import pytest

from adaverify_capability import TORCH_MATMUL, assume, probe, run_probe
from adaverify_capability.probe_process import run_probes_isolated
from adaverify_contracts import KernelLevel, KernelReport, ProbeDescriptor

ANY = ("cpu", "cuda", "rocm")

SOURCE = """
import ctypes, os, signal, sys, time
from adaverify_contracts import KernelLevel, KernelReport

def sound(facts):
    print("noise on stdout")
    return KernelReport("sound", "1.0", KernelLevel.EXECUTED, f"ran in {os.getpid()} on {facts.architecture}")

def aborts(facts):
    os.abort()

def segfaults(facts):
    ctypes.string_at(0)

def leaves(facts):
    os._exit(0)

def exits(facts):
    sys.exit(3)

def killed(facts):
    os.kill(os.getpid(), signal.SIGKILL)

def raises(facts):
    raise OSError("no libcuda")

def hangs(facts):
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A kernel library that a child process can import too."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "deadly_kernels.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("deadly_kernels")


def probe_of(library, name):
    return ProbeDescriptor(name, ANY, getattr(library, name))


def test_probes_that_kill_their_process_are_absent_and_the_others_go_on(library, capfd):
    """os.abort(), a null pointer, an exit without a word, a kill: ``doctor`` died of each of them."""
    names = ("sound", "aborts", "segfaults", "leaves", "exits", "killed", "raises")
    reports = run_probes_isolated([probe_of(library, name) for name in names], assume("cpu"), "cpu")
    assert [report.name for report in reports] == list(names)
    assert [report.level for report in reports] == [KernelLevel.EXECUTED] + [KernelLevel.ABSENT] * 6
    assert str(os.getpid()) not in reports[0].reason
    ends = ("", "SIGABRT", "SIGSEGV", "without a report", "SystemExit", "SIGKILL", "no libcuda")
    for report, words in zip(reports, ends, strict=True):
        assert words in report.reason
    # What a probe prints would break the doctor's JSON.
    assert capfd.readouterr().out == ""


def test_a_probe_that_hangs_is_killed_and_named(library):
    """The ones behind it still run."""
    probes = [probe_of(library, "hangs"), probe_of(library, "raises")]
    hung, raised = run_probes_isolated(probes, assume("cpu"), "cpu", timeout_s=4.0)
    assert "killed after 4 s" in hung.reason
    assert raised.reason == "OSError: no libcuda"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_probe_without_a_name_is_forked(number):
    """A lambda cannot be found by a child; a fork of this process has it already."""
    deadly = ProbeDescriptor("deadly", ANY, lambda facts: os.kill(os.getpid(), number))
    good = ProbeDescriptor("fine", ANY, lambda facts: KernelReport("fine", "1", KernelLevel.EXECUTED, "ran"))
    reports = run_probes_isolated([deadly, good], assume("cpu"), "cpu")
    assert signal.Signals(number).name in reports[0].reason
    assert reports[1].level is KernelLevel.EXECUTED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_probe_that_hangs_or_says_nothing_is_absent():
    """The time limit, and an exit with status 0."""
    import time

    hung = ProbeDescriptor("hung", ANY, lambda facts: time.sleep(600))
    silent = ProbeDescriptor("silent", ANY, lambda facts: os._exit(0))
    reports = run_probes_isolated([hung, silent], assume("cpu"), "cpu", timeout_s=0.5)
    assert "killed after 0.5 s" in reports[0].reason
    assert "exited with status 0" in reports[1].reason


def test_a_probe_for_another_device_starts_no_child(monkeypatch):
    """The cheap conditions come first."""
    monkeypatch.setattr("adaverify_capability.probe_process.run_child", None)
    (report,) = run_probes_isolated([ProbeDescriptor("paged", ("rocm",), os.abort)], assume("cpu"), "cpu")
    assert report.reason == "runs on rocm only, this device is cpu"


def test_isolated_and_direct_probing_agree_and_are_cached_apart():
    """A sound probe reports the same in both; neither stands in for the other."""
    direct = probe("cpu", [TORCH_MATMUL])
    alone = probe("cpu", [TORCH_MATMUL], isolated=True)
    assert alone == direct
    assert alone is not direct
    assert probe("cpu", [TORCH_MATMUL], isolated=True) is alone
    assert run_probe(TORCH_MATMUL, direct) == direct.kernel("torch-matmul")
