"""The Triton probe's kernel, run by the interpreter, and its honesty on a CPU."""

import subprocess
import sys
from itertools import accumulate

import pytest

from adaverify_capability import TRITON, assume, run_probe
from adaverify_capability.probes.triton_prefix_sum import LENGTHS, known_answer
from adaverify_contracts import KernelLevel

COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from adaverify_capability.probes._triton_kernel import prefix_sum_kernel as kernel

signature = {"lengths": "*i32", "sums": "*i32", "count": "i32", "BLOCK": "constexpr"}
source = ASTSource(fn=kernel, signature=signature, constexprs={"BLOCK": 16})
sizes = []
for target in json.loads(sys.argv[1]):
    binary = triton.compile(source, target=GPUTarget(*target)).asm
    sizes.append(len(binary["cubin" if target[0] == "cuda" else "hsaco"]))
print(json.dumps(sizes))
"""


def test_the_known_answer_is_the_running_sum_with_a_guard():
    assert known_answer() == [*accumulate(LENGTHS), -7]


def test_the_kernel_gives_the_known_answer_in_the_interpreter(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    code = (
        "from adaverify_capability.probes.triton_prefix_sum import known_answer, run\n"
        "got = run('cpu').tolist()\n"
        "assert got == known_answer(), got\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_kernel_compiles_for_every_target_ahead_of_time(triton_compiler):
    """(10, 0) and (12, 0) compile alike; that is why compiling proves nothing and the probe runs."""
    targets = [["cuda", arch, 32] for arch in (90, 100, 120)]
    targets += [["hip", arch, 64] for arch in ("gfx942", "gfx950")]
    sizes = triton_compiler.run(COMPILE, targets)
    assert len(sizes) == len(targets) and all(sizes)


def test_a_cpu_reports_imported_and_never_executed():
    pytest.importorskip("triton")
    report = run_probe(TRITON, assume("cpu"))
    assert report.level is KernelLevel.IMPORTED
    assert report.version
    assert "nothing was executed" in report.reason


def test_without_triton_the_report_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    report = run_probe(TRITON, assume("cpu"))
    assert report.level is KernelLevel.ABSENT
    assert report.reason.startswith("ModuleNotFoundError")


def test_a_device_that_cannot_run_the_kernel_is_not_executed():
    """Facts may claim a device; only a run proves it. On a machine with one, this test's claim is true."""
    import torch

    report = run_probe(TRITON, assume("sm90"))
    assert (report.level is KernelLevel.EXECUTED) == torch.cuda.is_available()
    assert report.reason
