"""A stored table held against the machine it is used on: up to a common factor, by shape."""

import json

import pytest

from adaverify_contracts import CostTableError
from adaverify_verification import ContentionWatch, CostModel, CostTable, Fingerprint, check_table
from adaverify_verification.table_check import FURTHER_ROUNDS, ROUNDS, choose_probes

HERE = Fingerprint.from_mapping({"device": "cpu"})
TOKENS = (4, 8, 16, 32)
SIZES = {"max_requests": 4, "max_context": 128}


def true_seconds(tokens, requests=4, context=128):
    return 0.01 + 0.001 * tokens


def table_of(wrong=None):
    """Return a table of the true times, but for ``wrong``: tokens -> factor."""
    points = [(count, 4, 128, true_seconds(count) * (wrong or {}).get(count, 1.0)) for count in TOKENS]
    return CostTable.from_points(HERE, points, draft=[(4, 0.002)], rejected_seconds=0.001)


class Machine:
    def __init__(self, slow=lambda tokens, number: 1.0):
        self.slow = slow
        self.runs = 0

    def __call__(self, tokens, requests, context):
        self.runs += 1
        return true_seconds(tokens) * self.slow(tokens, self.runs)


def test_an_unchanged_machine_keeps_its_table():
    """Three points, one warm-up and four rounds each; 3 % of noise is nothing."""
    machine = Machine(lambda tokens, number: 1.0 + 0.03 * (number % 2))
    found = check_table(table_of(), machine, **SIZES)
    assert found.outcome == "kept"
    assert machine.runs == len(found.probes) * (1 + ROUNDS) == 3 * (1 + ROUNDS)
    assert {probe.tokens for probe in found.probes} >= {4, 32}
    assert json.loads(json.dumps(found.as_dict()))["outcome"] == "kept"


@pytest.mark.parametrize("factor", [0.8, 1.4, 3.0])
def test_one_factor_on_all_points_is_another_clock(factor):
    """The shape is what a plan uses: rescaled, with the factor, and never measured anew."""
    found = check_table(table_of(), Machine(lambda *_: factor), **SIZES)
    assert found.outcome == "rescaled"
    assert found.factor == pytest.approx(factor)
    assert found.distortion == pytest.approx(0.0, abs=1e-9)
    scaled = table_of().scaled(found.factor)
    model = CostModel(scaled)
    assert float(model.seconds(16, 4, 128)) == pytest.approx(factor * true_seconds(16))
    assert scaled.draft == ((4, pytest.approx(0.002 * factor)),)
    assert scaled.rejected_seconds == pytest.approx(0.001 * factor)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_one_point_wrong_by_thirty_per_cent_is_found(tokens, factor):
    """Whichever it is, end or middle: a point out of line is among those measured (measured while busy)."""
    found = check_table(table_of({tokens: factor}), Machine(), **SIZES)
    assert found.outcome == "distorted"
    assert found.distortion >= 0.29
    assert f"{tokens} tokens, 4 requests, context 128 was" in found.words()
    assert "15% allowed" in found.words()


@pytest.mark.parametrize("factor", [0.6, 1 / 40])
def test_a_machine_far_faster_than_its_table_gives_a_steady_neighbour_away(factor):
    """Slower now is a busy machine of now; faster now is a table of a busy machine: measure anew."""
    found = check_table(table_of(), Machine(lambda *_: factor), **SIZES)
    assert (found.outcome, found.misfit) == ("outrun", True)
    assert f"steps take {factor:.2f} of its times (0.75 allowed)" in found.words()
    assert "32 tokens, 4 requests, context 128 was 42 ms" in found.words()


def test_a_flat_table_of_a_busy_machine_is_outrun_and_not_rescaled():
    """Every point 1.2 s; the two that are looked at are near each other on the quiet machine as well."""
    flat = CostTable.from_points(HERE, [(n, r, 128, 1.2) for r in (1, 4) for n in (r, 4 * r)])
    found = check_table(flat, lambda tokens, *_: 0.024 + 0.0001 * tokens, **SIZES)
    assert found.outcome == "outrun"


def test_a_wrong_shape_beside_a_steady_neighbour_is_undecided():
    """Rounds that agree with each other and waited half their time for a processor decide nothing."""
    waits, clock = iter(float(n) for n in range(10**4)), iter(2.0 * n for n in range(10**4))
    busy = ContentionWatch(lambda: {7: next(waits)}, lambda: next(clock))
    found = check_table(
        table_of(), Machine(lambda tokens, _: 2.0 if tokens == 32 else 1.0), **SIZES, watch=busy
    )
    assert found.outcome == "undecided"


def test_a_burst_during_the_check_is_outlived_by_further_rounds():
    """Four slow rounds of one point are outvoted by eight quiet ones."""
    slow = Machine(lambda tokens, number: 2.0 if tokens == 32 and number <= 15 else 1.0)
    found = check_table(table_of(), slow, **SIZES)
    assert found.outcome == "kept"
    assert slow.runs == 3 * (1 + ROUNDS + FURTHER_ROUNDS)


def test_a_machine_too_busy_to_tell_keeps_the_table_and_says_so():
    """What is measured now is worth less than what was measured in quiet."""
    busy = Machine(lambda tokens, number: 1.0 + (number % 10) / 4 if tokens == 32 and number > 3 else 1.0)
    found = check_table(table_of({32: 0.5}), busy, **SIZES)
    assert found.outcome == "undecided"
    assert "too busy now to tell" in found.words()


def test_only_points_that_can_run_here_are_taken():
    """A table of 16 requests serves 4: its larger points do not fit the engine."""
    points = [
        (count, requests, 128, 0.001 * count) for requests in (1, 4, 16) for count in (requests, 8 * requests)
    ]
    table = CostTable.from_points(HERE, points)
    chosen = choose_probes(table, max_requests=4, max_context=128)
    assert {requests for _, requests, _ in chosen} <= {1, 4}
    assert choose_probes(table, max_requests=4, max_context=64) == {}
    found = check_table(table, Machine(), max_requests=4, max_context=64)
    assert (found.outcome, found.words()) == ("unchecked", "not checked: no point of it can run here")


def test_dear_steps_are_left_out():
    """Seconds of one point are bounded; where every point is dear, the ends of the cheapest curve do."""

    def chosen(*seconds):
        points = [(count, 4, 128, time) for count, time in zip(TOKENS, seconds, strict=True)]
        return [shape[0] for shape in choose_probes(CostTable.from_points(HERE, points), **SIZES)]

    assert chosen(0.01, 0.011, 0.05, 0.9) == [4, 8, 16]
    assert chosen(0.01, 0.9, 1.0, 1.1) == [4, 32]
    assert chosen(2.0, 3.0, 4.0, 5.0) == [4, 32]
    points = [(1, 1, 128, 0.09), (8, 1, 128, 0.1), (4, 4, 128, 0.2), (32, 4, 128, 0.3)]
    assert list(choose_probes(CostTable.from_points(HERE, points), **SIZES)) == [(1, 1, 128), (8, 1, 128)]


def test_a_table_of_one_point_has_a_scale_and_no_shape():
    """Nothing to compare it with."""
    table = CostTable.from_points(HERE, [(4, 4, 128, true_seconds(4))])
    assert check_table(table, Machine(lambda *_: 1.5), **SIZES).outcome == "rescaled"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_run_that_returned_no_time_names_its_shape(value):
    """A broken clock is found in the check too."""
    with pytest.raises(CostTableError, match="4 requests, context 128 returned no time"):
        check_table(table_of(), lambda *_: value, **SIZES)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_a_factor_that_is_none_is_refused(factor):
    """A table never gets times that are no times."""
    with pytest.raises(CostTableError, match="factor"):
        table_of().scaled(factor)
