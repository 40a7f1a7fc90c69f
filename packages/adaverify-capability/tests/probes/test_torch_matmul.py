"""The matrix-product probe compares values in both dtypes."""

import torch

from adaverify_capability import TORCH_MATMUL, assume, run_probe
from adaverify_capability.probes.torch_matmul import known_answer
from adaverify_contracts import KernelLevel


def test_the_probe_executes_here():
    report = run_probe(TORCH_MATMUL, assume("cpu"))
    assert report.level is KernelLevel.EXECUTED
    assert report.version == torch.__version__


def test_the_known_answer_distinguishes_a_transpose_and_fits_bfloat16():
    answer = torch.tensor(known_answer()).reshape(8, 8)
    assert not torch.equal(answer, answer.T)
    assert int(answer.abs().max()) <= 256
    assert len(set(known_answer())) > 8


def test_a_device_that_misreads_one_dtype_is_not_executed(monkeypatch):
    real = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: real(a, b) + (1 if a.dtype is torch.bfloat16 else 0)
    )
    report = run_probe(TORCH_MATMUL, assume("cpu"))
    assert report.level is KernelLevel.IMPORTED
    assert report.reason.startswith("torch.bfloat16: wrong values: expected")
