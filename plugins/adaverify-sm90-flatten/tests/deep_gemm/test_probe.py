"""The probe: absent, import failure, wrong values, right values."""

import re
from importlib.util import find_spec

import pytest
import torch

from adaverify_capability import assume, run_probe
from adaverify_contracts import KernelLevel
from adaverify_sm90_flatten.deep_gemm.probe import DEEP_GEMM, examine, known_problem
from adaverify_sm90_flatten.deep_gemm.versions import PINNED


def test_right_values_are_executed(kit):
    report = examine(kit.library(), "cpu")
    assert (report.name, report.version, report.level) == ("deep-gemm", PINNED, KernelLevel.EXECUTED)
    assert "somewhere/deep_gemm" in report.reason


def test_right_values_of_an_unlisted_build_are_executed_and_say_so(kit):
    library = kit.library()
    library.__version__ = "9.9"
    report = examine(library, "cpu")
    assert report.level is KernelLevel.EXECUTED
    assert "not listed as verified" in report.reason


class Wrong:
    """One fault each, as a library for another torch would show it."""

    def off_by_one_page(self, kit):
        class Library(kit.library):
            def fp8_fp4_paged_mqa_logits(self, q, kv, *rest):
                return super().fp8_fp4_paged_mqa_logits(q, kv.roll(1, 0), *rest)

        return Library()

    def one_wrong_short_row(self, kit):
        class Library(kit.library):
            def fp8_fp4_paged_mqa_logits(self, *arguments):
                logits = super().fp8_fp4_paged_mqa_logits(*arguments)
                logits[1, 0] *= 1.01
                return logits

        return Library()

    def not_a_number(self, kit):
        class Library(kit.library):
            def fp8_fp4_paged_mqa_logits(self, *arguments):
                return super().fp8_fp4_paged_mqa_logits(*arguments) * float("nan")

        return Library()

    def another_schedule(self, kit):
        class Library(kit.library):
            def get_paged_mqa_logits_metadata(self, *arguments):
                return super().get_paged_mqa_logits_metadata(*arguments) + 1

        return Library()

    def misread_rank(self, kit):
        class Library(kit.library):
            def fp8_fp4_paged_mqa_logits(self, *arguments):
                raise RuntimeError("Assertion error (attention.hpp:99): context_lens.dim() == 2")

        return Library()

    def other_generation(self, kit):
        class Library:
            __version__ = "2.1.1.post3"

        return Library()


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("off_by_one_page", "wrong values for 1 tokens a row"),
        ("one_wrong_short_row", r"in result rows \[1\] of lengths \[1\]"),
        ("not_a_number", "relative error inf"),
        ("another_schedule", "wrong schedule for 1 tokens a row: slot 0"),
        ("misread_rank", "RuntimeError: Assertion error"),
        ("other_generation", "lacks functions"),
    ],
)
def test_a_build_that_imports_and_is_wrong_stays_imported_and_says_what(kit, fault, word):
    """sgl-deep-gemm 0.2.2 imports on this chip and misreads every tensor."""
    report = examine(getattr(Wrong(), fault)(kit), "cpu")
    assert report.level is KernelLevel.IMPORTED
    assert re.search(word, report.reason), report.reason


@pytest.mark.parametrize("word", ["sm80", "sm100", "sm120", "sm121"])
def test_other_chips_are_not_probed(word):
    """A family is no proof: exact words only."""
    report = run_probe(DEEP_GEMM, assume(word))
    assert report.level is KernelLevel.ABSENT
    assert report.reason == f"runs on sm90 only, this device is {word}"


def test_an_absent_library_is_absent_with_the_reason():
    """Found out in a child process, so that nothing half-imported stays behind."""
    if find_spec("deep_gemm"):
        pytest.skip("deep_gemm is installed here")
    report = run_probe(DEEP_GEMM, assume("sm90"))
    assert report.level is KernelLevel.ABSENT
    assert "ModuleNotFoundError" in report.reason and "deep_gemm" in report.reason


def test_an_assumed_chip_does_not_run_a_binary_on_another_one(tmp_path, monkeypatch):
    """Even where the library imports: the device at hand decides."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
        pytest.skip("this is that chip")
    (tmp_path / "deep_gemm.py").write_text("__version__ = '1'\n")
    monkeypatch.syspath_prepend(tmp_path)
    report = run_probe(DEEP_GEMM, assume("sm90"))
    assert report.level is KernelLevel.ABSENT
    assert "needs (9, 0)" in report.reason


def test_the_known_problem_has_answers_at_every_edge():
    """Lengths around a page and a split, two tokens included; no row is trivially right."""
    for tokens in (1, 2):
        call, want = known_problem(tokens)
        lens = call["row_lens"].flatten()
        assert ((want != float("-inf")).sum(1) == lens).all()
        assert {0, 1, 64, 256, 257} <= set(lens.tolist())
        finite = want[want != float("-inf")]
        assert float(finite.abs().min()) > 0
