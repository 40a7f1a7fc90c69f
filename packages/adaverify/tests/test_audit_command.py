"""``adaverify audit``: the shipped defaults pass, a stranger's plugin that lies is found, exit codes tell."""

from __future__ import annotations

import json

from adaverify_contracts import BudgetReads, PolicyDescriptor, Seen, SignalDescriptor, hookimpl
from adaverify_verification import RatioPolicy
from adaverify_verification.signals import DrafterSignal

SMALL = ("audit", "--signal", "calibrated", "--policy", "ratio", "--toys", 3)


class Liar:
    """A stranger's plugin: its policy reads live values and claims to stop at the frontier."""

    def __init__(self, reads=BudgetReads.FRONTIER):
        self.reads = reads

    @hookimpl
    def adaverify_register_policies(self):
        return (PolicyDescriptor("greedy-grab", self.reads, RatioPolicy),)

    @hookimpl
    def adaverify_register_signals(self):
        return (SignalDescriptor("raw", Seen.HISTORY, True, DrafterSignal),)


STRANGER = ("audit", "--signal", "raw", "--policy", "greedy-grab")


def test_the_defaults_pass_and_the_page_fits(tiny, invoke):
    """Machine precision, every known violation reproduced, and the contract in force, in 80 columns."""
    result = invoke(*SMALL)
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines()[:20])) <= 80
    for words in ("Signals and policies, as served", "Known violations", "M4", "0.3125", "M8"):
        assert words in result.stdout
    assert "In force, with drafter n-gram: calibrated and ratio may trim" in result.stdout
    assert "The emitted joint law is the target's on all 3 toys" in result.stdout


def test_json_has_every_number(tiny, invoke):
    """One value with pairs, known violations and the contract."""
    report = json.loads(invoke(*SMALL, "--json").stdout)
    assert report["passed"] is True
    (pair,) = report["pairs"]
    assert (pair["signal"], pair["policy"], pair["allowed"]) == ("calibrated", "ratio", True)
    assert pair["lossless"] is True
    assert pair["served"]["largest"] < 1e-15
    assert pair["served"] | {"largest": 0} == {"largest": 0, "wrong": 0, "toys": 3}
    assert pair["trimmed"] > 0
    known = {one["case"]: one for one in report["known"]}
    assert list(known) == ["M4", "M5", "M6", "M7", "M8"]
    assert all(one["reproduced"] for one in known.values())
    assert abs(known["M6"]["found"]["P(A)"] - 0.56) < 1e-12
    assert [row["drafter"] for row in report["in_force"]] == ["n-gram"]


def test_a_strangers_policy_that_lies_fails_the_audit(tiny, invoke):
    """Found through the hooks, refuted by name, exit code 1."""
    tiny(Liar())
    result = invoke(*STRANGER)
    assert result.exit_code == 1
    assert "signal raw with policy greedy-grab changes what is emitted" in result.stderr
    report = json.loads(invoke(*STRANGER, "--json").stdout)
    assert report["passed"] is False
    assert report["pairs"][0]["served"]["largest"] > 0.01


def test_the_same_policy_declared_truly_passes(tiny, invoke):
    """Downgraded, hence exact; the last column shows what trust would have cost."""
    tiny(Liar(BudgetReads.LIVE))
    report = json.loads(invoke(*STRANGER, "--json").stdout)
    assert report["passed"] is True
    (pair,) = report["pairs"]
    assert (pair["allowed"], pair["lossless"]) == (False, True)
    assert pair["trusted"]["largest"] > 0.01
    assert "live confidences past the frontier" in pair["reason"]


def test_unknown_names_are_refused(tiny, invoke):
    """A typed error that lists what there is; a word of another kind is wrong usage."""
    result = invoke("audit", "--policy", "ratoi")
    assert result.exit_code == 3
    assert "ratio" in result.stderr
    assert invoke("audit", "--scores", "everything").exit_code == 2
