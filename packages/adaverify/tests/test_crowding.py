"""A CPU that something else uses is said in one line, counted, and only where the setting would help."""

from __future__ import annotations

import json
import os

import pytest

from adaverify import crowding as module
from adaverify.crowding import CROWDED, crowding, load_average, processors
from adaverify.pricing import Prices
from adaverify_verification import CostTable, Fingerprint, TableCheck

QUIET = Prices(None, "none", "nothing to plan")


@pytest.fixture
def threads(monkeypatch):
    """Two threads, and nothing said about how they wait."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 2)


def disturbed(*points):
    table = CostTable.from_points(
        Fingerprint.from_mapping({"device": "x"}), [(1, 1, 16, 1e-3), (8, 1, 16, 2e-3)], disturbed=points
    )
    return Prices(table, "measured", "measured now")


@pytest.mark.usefixtures("threads")
def test_more_load_than_processors_is_said_with_both_numbers():
    """The bound itself is no sign of anybody else."""
    assert crowding("cpu", float(processors()), QUIET) == ""
    said = crowding("cpu", processors() + 1.5, QUIET)
    assert said.startswith(f"{CROWDED}: the load was {processors() + 1.5:.1f} on {processors()} processor")
    assert "OMP_WAIT_POLICY=PASSIVE" in said and "\n" not in said


@pytest.mark.usefixtures("threads")
def test_step_times_that_do_not_come_to_rest_are_said():
    """Measured now, or a stored table that could not be checked; what a stored one was is of another day."""
    assert "2 measured step times never came to rest" in crowding("cpu", 0.0, disturbed("a", "b"))
    stored = Prices(disturbed("a").table, "stored", "stored")
    assert crowding("cpu", 0.0, stored) == ""
    checked = Prices(stored.table, "stored", "stored", TableCheck("undecided"))
    assert "could not be checked" in crowding("cpu", 0.0, checked)
    both = crowding("cpu", 99.0, disturbed("a"))
    assert "the load was 99.0" in both and ", and 1 measured step time never" in both


@pytest.mark.usefixtures("threads")
def test_nothing_is_said_where_nothing_would_help(monkeypatch):
    """An accelerator, threads that sleep already, or one thread that waits for no other."""
    assert crowding("cuda:0", 99.0, disturbed("a")) == ""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert crowding("cpu", 99.0, disturbed("a")) == ""
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 1)
    assert crowding("cpu", 99.0, disturbed("a")) == ""


def test_the_load_is_the_systems_or_nothing(monkeypatch):
    """A system without load averages is one of which nothing is known."""
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 0.0, 0.0))
    assert load_average() == 3.5
    monkeypatch.delattr(os, "getloadavg")
    assert load_average() == 0.0


@pytest.mark.usefixtures("threads")
def test_a_run_says_and_counts_it(tiny, run_tiny, machine):
    """Once on standard error, among the warnings, and once in every engine; a quiet machine has none."""
    assert CROWDED not in run_tiny("--json", "--mode", "fixed").stdout
    machine.load = 99.0
    result = run_tiny("--json", "--mode", "fixed", "--mode", "none")
    assert " ".join(result.stderr.split()).count(f"{CROWDED}: the load was 99.0") == 1
    report = json.loads(result.stdout)
    (warning,) = [line for line in report["warnings"] if line.startswith(CROWDED)]
    assert "OMP_WAIT_POLICY=PASSIVE" in warning
    assert [one["counters"][CROWDED] for one in report["modes"].values()] == [1, 1]
