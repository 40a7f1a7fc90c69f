"""The probe: absent, import failure, wrong values, right values."""

import re
from importlib.util import find_spec

import pytest
import torch

from adaverify_capability import assume, run_probe
from adaverify_contracts import KernelLevel
from adaverify_sm100_varlen.deep_gemm.probe import DEEP_GEMM, REQUESTS, examine, known_problem
from adaverify_sm100_varlen.deep_gemm.versions import CONTRACTS, KNOWN_VERSIONS, PINNED


@pytest.mark.parametrize("version", sorted(KNOWN_VERSIONS))
def test_right_values_are_executed(kit, version):
    """Of every listed build; none is verified, and the report says so."""
    report = examine(kit.library(version), "cpu")
    assert (report.name, report.version) == ("deep-gemm-varlen", version)
    assert report.level is KernelLevel.EXECUTED, report.reason
    assert "not listed as verified" in report.reason and "emulated" in report.reason


def test_an_unlisted_build_is_not_guessed(kit):
    library = kit.library(PINNED)
    library.__version__ = "9.9"
    report = examine(library, "cpu")
    assert report.level is KernelLevel.IMPORTED
    assert "not listed" in report.reason
    assert library.calls == []


class Wrong:
    """One fault each, as a library for another torch would show it."""

    def off_by_one_page(self, kit):
        class Library(kit.library):
            def fp8_fp4_paged_mqa_logits(self, q, kv, *rest, **keywords):
                return super().fp8_fp4_paged_mqa_logits(q, kv.roll(1, 0), *rest, **keywords)

        return Library(PINNED)

    def one_wrong_short_row(self, kit):
        class Library(kit.library):
            def fp8_fp4_paged_mqa_logits(self, *arguments, **keywords):
                logits = super().fp8_fp4_paged_mqa_logits(*arguments, **keywords)
                logits[3, 0] *= 1.01
                return logits

        return Library(PINNED)

    def not_a_number(self, kit):
        class Library(kit.library):
            def fp8_fp4_paged_mqa_logits(self, *arguments, **keywords):
                return super().fp8_fp4_paged_mqa_logits(*arguments, **keywords) * float("nan")

        return Library(PINNED)

    def another_schedule(self, kit):
        class Library(kit.library):
            def get_paged_mqa_logits_metadata(self, *arguments, **keywords):
                return super().get_paged_mqa_logits_metadata(*arguments, **keywords) + 1

        return Library(PINNED)

    def another_builds_rule(self, kit):
        """The version string of one build, the code of another."""
        library = kit.library("2.6.1")
        library.__version__ = PINNED
        return library

    def misread_rank(self, kit):
        class Library(kit.library):
            def fp8_fp4_paged_mqa_logits(self, *arguments, **keywords):
                raise RuntimeError("Assertion error (attention.hpp:99): context_lens.dim() == 2")

        return Library(PINNED)

    def other_generation(self, kit):
        class Library:
            __version__ = PINNED

        return Library()


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("off_by_one_page", "wrong values: relative error"),
        ("one_wrong_short_row", r"in result rows \[3\] of lengths \[1\]"),
        ("not_a_number", "relative error inf"),
        ("another_schedule", "wrong schedule: slot 0 starts at"),
        ("another_builds_rule", "wrong schedule: slot"),
        ("misread_rank", "RuntimeError: Assertion error"),
        ("other_generation", "lacks functions"),
    ],
)
def test_a_build_that_imports_and_is_wrong_stays_imported_and_says_what(kit, fault, word):
    """sgl-deep-gemm 0.2.2 imports elsewhere and misreads every tensor."""
    report = examine(getattr(Wrong(), fault)(kit), "cpu")
    assert report.level is KernelLevel.IMPORTED
    assert re.search(word, report.reason), report.reason


@pytest.mark.parametrize("word", ["sm90", "sm101", "sm107", "sm120", "sm121"])
def test_other_chips_are_not_probed(word):
    """A family is no proof: exact words only."""
    report = run_probe(DEEP_GEMM, assume(word))
    assert report.level is KernelLevel.ABSENT
    assert report.reason == f"runs on sm100 or sm103 only, this device is {word}"


def test_an_absent_library_is_absent_with_the_reason():
    """Found out in a child process, so that nothing half-imported stays behind."""
    if find_spec("deep_gemm"):
        pytest.skip("deep_gemm is installed here")
    report = run_probe(DEEP_GEMM, assume("sm100"))
    assert report.level is KernelLevel.ABSENT
    assert "ModuleNotFoundError" in report.reason and "deep_gemm" in report.reason


def test_an_assumed_chip_does_not_run_a_binary_on_another_one(tmp_path, monkeypatch):
    """Even where the library imports: the device at hand decides."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() in ((10, 0), (10, 3)):
        pytest.skip("this is that chip")
    (tmp_path / "deep_gemm.py").write_text("__version__ = '1'\n")
    monkeypatch.syspath_prepend(tmp_path)
    report = run_probe(DEEP_GEMM, assume("sm100"))
    assert report.level is KernelLevel.ABSENT
    assert "needs (10, 0) or (10, 3)" in report.reason


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_the_known_problem_has_answers_at_every_edge(contract):
    """Runs of one to five rows, lengths around a page and every split; no row is trivially right."""
    call, want = known_problem(contract)
    lens = call["row_lens"].flatten()
    assert ((want != float("-inf")).sum(1) == lens).all()
    assert {0, 1, 64, 65, 256, 257, 384, 385} <= set(lens.tolist())
    assert {tokens for tokens, _ in REQUESTS} >= {1, 2, 3, 4, 5}
    assert float(want[want != float("-inf")].abs().min()) > 0
