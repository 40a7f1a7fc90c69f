"""A verifier with two ragged strategies: what is allocated, what a step takes, and what is reported."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify_contracts import (
    CostTableError,
    DrafterDescriptor,
    FingerprintMismatchError,
    Limits,
    Seen,
    StepState,
    hookimpl,
)
from adaverify_metadata import PairedRowBuilder
from adaverify_runtime import (
    GraphSettings,
    PathSettings,
    PlannerSettings,
    RowCost,
    RowCostTable,
    Settings,
    assemble,
    doctor,
)
from adaverify_verification import CostTable, Fingerprint

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=64, page_size=4)
SETTINGS = Settings(planner=PlannerSettings(signal="drafter", warmup_steps=0, online=False))
STEPS = CostTable.from_points(
    Fingerprint.from_mapping({"device": "a test"}),
    [(n, r, 16, 0.01 if n <= 8 else 0.05) for n in (1, 2, 4, 8, 9, 16) for r in (1, 4)],
)


def rows(name="pairs", **fingerprint):
    """Pairs win from context 32 on, lose at 16, and nothing is known below 4 query tokens or 8 of context."""
    times = {8: (1.0, 2.0), 16: (1.0, 2.0), 32: (2.0, 1.0), LIMITS.max_kv_len: (4.0, 1.0)}
    costs = [
        RowCost(strategy, tokens, context, seconds)
        for tokens in (4, 16)
        for context, pair in times.items()
        for strategy, seconds in zip(("reference", name), pair, strict=True)
    ]
    return RowCostTable(tuple(costs), fingerprint)


class Film:
    """A graph backend for CPUs: it keeps the step and plays it."""

    def __init__(self, device):
        pass

    def estimate(self, run):
        return 0

    def capture(self, run):
        run()
        return SimpleNamespace(replay=run)

    def pool_bytes(self):
        return 0


@pytest.fixture
def plugins(make, real_plugins):
    """Return the real plugins beside one with a second ragged strategy; ``made`` lists what it allocated."""
    made = []

    def allocate(limits, device, capability):
        made.append("pairs")
        return PairedRowBuilder("pairs", limits, device, backend="torch")

    class Plugin:
        @hookimpl
        def adaverify_register_decode_strategies(self):
            return (make.strategy("pairs", priority=-5, allocate=allocate),)

        @hookimpl
        def adaverify_register_graph_backends(self):
            return (replace(make.backend("film"), captures=True, factory=Film),)

    manager = real_plugins(Plugin())
    return SimpleNamespace(manager=manager, made=made)


@pytest.fixture
def verifier(plugins):
    """Return a maker of verifiers; every one is closed."""
    items = []

    def build(**options):
        options = {"settings": SETTINGS, "cost_table": STEPS, "mode": "adaptive", **options}
        drafter = DrafterDescriptor("echo", Seen.HISTORY, True, dict)
        items.append(assemble(LIMITS, device="cpu", plugins=plugins.manager, drafter=drafter, **options))
        return items[-1]

    yield build
    for item in items:
        item.close()


def trimmed(checker, step=1):
    """Plan a step of three requests with 5 of 9 drafts, 8 query tokens."""
    scores = torch.full((3, 3), -12.0)
    scores[0, :2] = scores[2] = 12.0
    zeros = np.zeros(3, dtype=np.int64)
    state = StepState(step, np.arange(3), zeros, np.full(3, 3), emitting=3, kv_tokens=24)
    checker.publish(step, state.slots, state.generations, scores)
    plan = checker.plan(state)
    assert (plan.budget, plan.tokens) == (5, 8)
    return plan


def inputs(lens):
    pages = torch.arange(4 * LIMITS.table_width, dtype=torch.int32).view(4, -1)
    return torch.full((3,), 3, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32), pages


def test_a_step_takes_the_strategy_measured_at_its_context(verifier):
    """The host's upper bound of the KV lengths decides: 28 + 4 tokens is 32; the rows are that builder's."""
    checker = verifier(row_costs=rows())
    found = []
    for step, lens in enumerate(([7, 6, 8], [7, 28, 8], [7, 20, 8], [1, 2, 3])):
        staged = checker.stage(trimmed(checker, step), *inputs(lens))
        found.append((staged.strategy, staged.rows.row_lens.shape[-1], "rows: " in staged.reason))
    assert found == [
        ("reference", 1, True),
        ("pairs", 2, True),
        ("reference", 1, True),
        ("reference", 1, True),
    ]
    words = {name: n for name, n in checker.counters.items() if name.startswith("rows: ")}
    assert words == {"rows: reference": 2, "rows: pairs": 1, "rows: tie": 0, "rows: unknown shape": 1}


def test_a_padded_shape_outside_the_table_is_the_first_strategys(verifier):
    """Shapes count with their padding; unknown ones are counted as such."""
    checker = verifier(row_costs=rows())
    staged = checker.stage(trimmed(checker), *inputs([7, 40, 8]), padded_requests=4, padded_tokens=17 - 1)
    assert staged.strategy == "pairs"
    short = checker.decide(trimmed(checker, 2), context=7)
    assert (short.strategy, short.word) == ("reference", "unknown shape")
    # Only the device knows: the longest context that the limits allow.
    assert checker.decide(trimmed(checker, 3)).strategy == "pairs"
    assert checker.counters["rows: pairs"] == 1, "asking counts nothing"


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, "no row-cost table compares it with pairs"),
        ({"row_costs": rows("trios")}, "pairs fits too, and the row-cost table does not mention it"),
        ({"row_costs": RowCostTable((RowCost("pairs", 1, 1, 1.0),), {})}, "has not measured it"),
        ({"strategy": "reference", "row_costs": rows()}, "nothing else that was measured may be used"),
    ],
)
def test_an_alternative_that_cannot_be_compared_is_not_allocated(verifier, plugins, options, note):
    """One builder, no choice to count, and the reason in the start-up report."""
    checker = verifier(**options)
    assert not plugins.made and not [name for name in checker.counters if name.startswith("rows: ")]
    assert [item for item in checker.report.notes if note in item]
    assert checker.stage(trimmed(checker), *inputs([7, 40, 8])).strategy == "reference"


def test_the_report_names_the_alternatives(verifier, plugins):
    checker = verifier(row_costs=rows(device="a card"))
    assert plugins.made == ["pairs"]
    expected = "rows: reference, or pairs where that was measured to be faster on a card"
    assert expected in checker.report.notes


def test_a_graph_chooses_once_at_its_capture(verifier):
    """By its own token count and the longest context; replays keep it, name it and count it."""
    settings = replace(SETTINGS, graphs=GraphSettings(backend="film"))
    checker = verifier(row_costs=rows(), settings=settings)
    captured = {}

    def step(staged, key):
        captured[key.tokens] = (staged.strategy, staged.rows.row_lens.shape[-1])
        assert staged.reason.startswith(f"captured at {key.tokens} tokens; rows: ")

    assert checker.capture(step).complete
    assert captured[8] == ("pairs", 2)
    plan = trimmed(checker)
    assert checker.replay(plan, *inputs([7, 6, 8])).key.tokens == 8
    assert checker.counters["rows: pairs"] == 1
    assert checker._staged[plan.step] == "pairs"


def test_a_file_of_another_setup_is_refused(verifier, tmp_path):
    """The setting names a file; device, page size and known versions are compared, the rest is not ours."""
    path = tmp_path / "rows.json"
    settings = replace(SETTINGS, paths=PathSettings(row_costs=path))
    with pytest.raises(CostTableError, match="FileNotFoundError"):
        verifier(settings=settings)
    here = verifier().capability.device_name
    rows(device=here, torch=torch.__version__, page_size=4, heads=64).save(path)
    assert verifier(settings=settings).stage is not None
    for changes in ({"device": "another"}, {"page_size": 64}, {"torch": "0.1"}):
        rows(**{"device": here, **changes}).save(path)
        with pytest.raises(FingerprintMismatchError, match=next(iter(changes))):
            verifier(row_costs=path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "fingerprint": {}}))
    with pytest.raises(FingerprintMismatchError, match="device"):
        verifier(row_costs=path)


def test_the_doctor_names_alternatives_and_problems(plugins, tmp_path):
    """Without a table the comparison that is missing; a file that cannot be read is a problem."""
    report = doctor(SETTINGS, "cpu", plugins=plugins.manager)
    assert any("no row-cost table compares it with pairs" in note for note in report.notes)
    settings = replace(SETTINGS, paths=PathSettings(row_costs=tmp_path / "absent.json"))
    report = doctor(settings, "cpu", plugins=plugins.manager)
    assert any("no row-cost table can be read" in problem for problem in report.problems)
