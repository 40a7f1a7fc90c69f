"""A calibration file at start: the signal it chooses, and what does not fit."""

import json

import pytest
import torch

from adaverify_contracts import CalibrationError, Seen, SignalDescriptor, hookimpl
from adaverify_runtime import PathSettings, PlannerSettings, Settings, read_calibration
from adaverify_verification import TEMPERATURE_SCALED, calibration_subject, save_state
from adaverify_verification.signals import CalibratedSignal, DrafterSignal

SUBJECT = calibration_subject("toy", "echo")


@pytest.fixture
def file(tmp_path):
    """Return a function that writes JSON and returns settings that name the file."""

    def write(value, **planner):
        path = tmp_path / "calibration.json"
        path.write_text(json.dumps(value))
        return Settings(planner=PlannerSettings(**planner), paths=PathSettings(calibration=path))

    return write


def ours(**changes):
    temperatures = {"temperatures": [0.5, 1.0, 2.0]}
    return {
        "format": 1,
        "signal": "temperature-scaled",
        "fingerprint": SUBJECT,
        "draft_tokens": 3,
        "learnt": {"greedy": temperatures, "sampled": None},
        **changes,
    }


def test_the_file_chooses_the_signal_and_fills_it(verifier, file):
    """The default signal gives way; the report names file and signal."""
    checker = verifier(settings=file(ours()), target="toy")
    assert checker.manager.signal.temperatures()["greedy"] == [0.5, 1.0, 2.0]
    assert checker.manager.signal.ready()[0]
    assert any("calibration.json, for signal temperature-scaled" in note for note in checker.report.notes)
    chosen = [item.name for item in checker.report.signals if item.chosen]
    assert chosen == ["temperature-scaled"]


@pytest.mark.parametrize("value", [[0.5, 1.0, 2.0], {"sts_temperatures": [0.5, 1.0, 2.0]}])
def test_another_engines_file_needs_no_name(verifier, file, value):
    """Lists of temperatures name no target; both regimes take them."""
    checker = verifier(settings=file(value))
    assert checker.manager.signal.temperatures() == {name: [0.5, 1.0, 2.0] for name in ("greedy", "sampled")}


def test_what_the_logistic_form_learnt_starts_warm(verifier, kit, tmp_path):
    """A file of signal calibrated goes back to it, and to the one the user named."""
    signal = CalibratedSignal(kit.limits, torch.device("cpu"))
    path = tmp_path / "calibration.json"
    save_state(path, signal.export_state(SUBJECT))
    paths = PathSettings(calibration=path)
    for planner in (PlannerSettings(), PlannerSettings(signal="calibrated")):
        checker = verifier(settings=Settings(planner=planner, paths=paths), target="toy")
        assert isinstance(checker.manager.signal, CalibratedSignal)


@pytest.mark.parametrize(
    ("value", "planner", "options", "words"),
    [
        (
            ours(),
            {},
            {"target": "other"},
            "saved 'target toy, drafter echo', here 'target other, drafter echo'",
        ),
        (ours(), {}, {"target": "toy", "drafter": None}, "here 'target toy, drafter not named'"),
        (ours(), {}, {}, "here 'target not named, drafter echo'"),
        (ours(draft_tokens=7), {}, {"target": "toy"}, "draft_tokens: saved 7, here 3"),
        (ours(), {"signal": "calibrated"}, {"target": "toy"}, "of signal 'temperature-scaled'.*'calibrated'"),
        ([1.0] * 4, {}, {}, "calibration.json: 4 temperatures were given for K = 3"),
        ({"nothing": 1}, {}, {}, "no temperatures that are understood"),
        (ours(signal="drafter"), {}, {"target": "toy"}, "signal 'drafter' takes no calibration file"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(verifier, file, value, planner, options, words):
    """Another target, drafter, K or signal: nothing runs with the wrong confidences."""
    with pytest.raises(CalibrationError, match=words):
        verifier(settings=file(value, **planner), **options)


def test_a_file_that_cannot_be_read_is_named(verifier, tmp_path):
    """Missing, and not JSON."""
    missing = Settings(paths=PathSettings(calibration=tmp_path / "none.json"))
    with pytest.raises(CalibrationError, match=r"cannot be read.*none\.json"):
        verifier(settings=missing)
    (tmp_path / "text.json").write_text("T = 1")
    with pytest.raises(CalibrationError, match="cannot be read"):
        verifier(settings=Settings(paths=PathSettings(calibration=tmp_path / "text.json")))


def test_a_strangers_signal_takes_files_too(verifier, file, real_plugins):
    """Whatever has import_state is handed the parsed file and the names of target and drafter."""
    taken = []

    class Own(DrafterSignal):
        def import_state(self, state, fingerprint):
            taken.append((state["learnt"], fingerprint))

    class Plugin:
        @hookimpl
        def adaverify_register_signals(self):
            return (SignalDescriptor("own", Seen.HISTORY, True, Own),)

    value = {"signal": "own", "learnt": {"x": 1}}
    verifier(settings=file(value), plugins=real_plugins(Plugin()), target="toy")
    assert taken == [({"x": 1}, SUBJECT)]
    assert TEMPERATURE_SCALED.reads_scores


def test_rows_are_reported_where_somebody_listens(kit, verifier):
    """Without observers a record has no rows, and their making costs nothing."""
    checker = verifier(settings=kit.settings)

    def step(number):
        state = kit.state(number, [3, 2])
        plan = checker.plan(state)
        staged = checker.stage(plan, *kit.tensors([3, 2], [4, 4]), kit.table())
        return checker.observe(kit.outcome(state, plan, staged), plan)

    assert step(1).rows is None
    heard = []
    checker.add_observer("test", heard.append)
    rows = step(2).rows
    checker.drain()
    assert [record.rows for record in heard] == [rows]
    assert rows.drafted == (3, 2) and len(rows.scores[0]) == 3


def test_a_file_that_holds_null_is_refused(file):
    """It passed for no calibration, and chose another signal all the same."""
    path = file(None).paths.calibration
    with pytest.raises(CalibrationError, match=r"calibration\.json: .*arrived: 'null'"):
        read_calibration(path)
