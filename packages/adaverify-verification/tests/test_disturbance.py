"""Tables measured on a busy machine: noticed, measured again, and named where that did not help."""

import pytest

from adaverify_verification import CostTable, Fingerprint, ProfileGrid, profile_cost
from adaverify_verification.disturbance import RETRIES, corrections, spread

HERE = Fingerprint.from_mapping({"device": "cpu"})
GRID = ProfileGrid((4,), (128,), (4, 8, 16, 32), draft_tokens=7, warmup=0, repeats=3)


def true_seconds(tokens, requests=4, context=128):
    return 0.01 + 0.001 * tokens


class Machine:
    """Runs steps that take ``true_seconds``, times what ``slow`` makes of the run's number for that shape."""

    def __init__(self, slow):
        self.slow = slow
        self.runs = {}

    def __call__(self, tokens, requests, context):
        number = self.runs.get(tokens, 0)
        self.runs[tokens] = number + 1
        return true_seconds(tokens) * self.slow(tokens, number)


def assert_true(table):
    for tokens, _, _, seconds in table.points:
        assert seconds == pytest.approx(true_seconds(tokens), rel=1e-9)


def test_a_quiet_machine_is_measured_once():
    """No shape in doubt: not one run more than asked for."""
    machine = Machine(lambda tokens, number: 1.0 + 0.02 * (number % 2))
    table = profile_cost(machine, GRID, HERE)
    assert set(machine.runs.values()) == {3}
    assert table.disturbed == table.outliers == ()


def test_a_burst_on_one_point_is_measured_again_there_only():
    """A neighbour woke up for two of three rounds of one shape (vllm #52057); quiet shapes are left alone."""
    machine = Machine(lambda tokens, number: 2.0 if tokens == 16 and number < 2 else 1.0)
    table = profile_cost(machine, GRID, HERE)
    assert machine.runs == {4: 3, 8: 3, 16: 6, 32: 3}
    assert_true(table)
    assert table.disturbed == ()


def test_a_burst_over_all_rounds_of_one_point_is_found_by_the_curve():
    """All its rounds agree and are wrong; larger steps were faster, and that puts it in doubt."""
    machine = Machine(lambda tokens, number: 2.5 if tokens == 8 and number < 3 else 1.0)
    table = profile_cost(machine, GRID, HERE)
    assert_true(table)
    assert machine.runs[32] == 3
    assert table.disturbed == ()


def test_a_slower_clock_moves_all_points_and_nothing_is_in_doubt():
    """One common factor is no disturbance: ratios of prices are what a plan reads."""
    table = profile_cost(Machine(lambda *_: 1.7), GRID, HERE)
    assert [seconds / true_seconds(tokens) for tokens, *_, seconds in table.points] == pytest.approx(
        [1.7] * 4
    )
    assert table.disturbed == ()


def test_a_machine_that_stays_busy_ends_in_a_disturbed_table(tmp_path):
    """Its neighbour gets busier by the round: bounded passes, then the table names the point, on disk too."""
    machine = Machine(lambda tokens, number: 1.0 + 0.25 * number if tokens == 16 else 1.0)
    seen = []
    table = profile_cost(machine, GRID, HERE, progress=lambda *now: seen.append(now))
    assert machine.runs == {4: 3, 8: 3, 16: 3 * (1 + RETRIES), 32: 3}
    (words,) = table.disturbed
    assert words.startswith("16 tokens, 4 requests, context 128")
    assert f"{3 * (1 + RETRIES)} rounds do not agree" in words
    assert seen[-1][0] == seen[-1][1] == sum(machine.runs.values())
    table.save(tmp_path / "t.json")
    assert CostTable.load(tmp_path / "t.json", HERE) == table


def test_a_kernel_that_is_faster_at_a_larger_size_is_no_disturbance():
    """The time came out again, so it is the machine's own: an outlier by name, and a usable table."""
    machine = Machine(lambda tokens, number: 2.0 if tokens == 4 else 1.0)
    table = profile_cost(machine, GRID, HERE)
    assert table.disturbed == ()
    assert any(line.startswith("4 tokens") for line in table.outliers)
    assert machine.runs[4] == 6


def test_spread_is_the_distance_of_what_counts_from_the_fastest():
    """A slow round in three says nothing; two do. One lucky round of nine is left out, of three it is not."""
    assert spread([1.0, 1.02, 9.0]) == pytest.approx(0.01)
    assert spread([1.0, 9.0, 9.0]) == pytest.approx(4.0)
    assert spread([0.7] + [1.0] * 8) == 0.0
    assert spread([0.7, 1.0, 1.0]) > 0.1


def test_corrections_are_by_curve():
    """Each (requests, context) has a curve of its own."""
    moved = corrections({(1, 1, 0): 5.0, (2, 1, 0): 4.0, (1, 2, 0): 1.0, (2, 2, 0): 2.0})
    assert moved == pytest.approx({(1, 1, 0): 0.1, (2, 1, 0): 0.125, (1, 2, 0): 0.0, (2, 2, 0): 0.0})
