"""Two query tokens a row in the whole step: cases, room, and the row costs that the runtime reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from adaverify.bench.endtoend import paired
from adaverify.bench.endtoend.ground import Ground
from adaverify.bench.endtoend.row_costs import row_cost_facts
from adaverify.bench.endtoend.store import Store
from adaverify_contracts import LimitsError
from adaverify_runtime.row_choice import RowChoice, RowCostTable


def test_pairs_of_other_requests_are_cases_of_their_own(ours, text, invoke, tmp_path, monkeypatch):
    """What one number of requests took is not kept for another, and each stays beside the others."""
    asked = []

    def measured(ground, requests, context):
        asked.append((requests, context))
        times = {"step_us": 2.0, "step_us_low": 1.0, "step_us_high": 3.0}
        return {"requests": requests, "context": context, "tiers": {"8": {"default": times}}}

    monkeypatch.setattr(paired, "measure_paired", measured)
    for requests in (1, 1, 2):
        found = invoke(
            *("bench", "endtoend", "--device", "cpu", "--requests", requests, "--repeat", 1),
            *("--stage", "paired", "--out", tmp_path / "out"),
        )
        assert found.exit_code == 0, found.stderr
    assert asked == [(1, 32), (1, 64), (2, 32), (2, 64)]
    kept = json.loads((tmp_path / "out" / "endtoend.json").read_text())["stages"]["paired"]
    assert list(kept) == ["1 x 32", "1 x 64", "2 x 32", "2 x 64"]


def test_whole_steps_choose_the_rows_of_the_runtime(ground, tmp_path):
    """Pairs win at the long context, and of two batches of one size the one where they lost counts."""

    def case(count, context, flat, pair):
        times = {
            name: {"step_us": step, "step_us_low": step - 1.0, "step_us_high": step + 1.0}
            for name, step in (("flatten", flat), ("paired", pair))
        }
        return {
            "requests": count,
            "context": context,
            "tiers": {"8": {**times, "ratio": {"median": flat / pair}}},
        }

    store = Store(tmp_path / "endtoend.json", {})
    for count, context, flat, pair in ((1, 64, 100.0, 90.0), (2, 64, 100.0, 120.0), (1, 4096, 100.0, 80.0)):
        store.keep("paired", f"{count} x {context}", case(count, context, flat, pair))
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"benchmarks": [{"facts": row_cost_facts(store, ground)}]}))
    device = ground.options.capability.device_name
    table = RowCostTable.load(report, {"device": device, "page_size": 4})
    choice = RowChoice(table, "flatten", ["paired"])
    assert choice.choose(8, 4096).strategy == "paired"
    assert choice.choose(8, 64).strategy == "flatten"
    assert choice.choose(8, 1000).strategy == "flatten"


def test_without_pairs_there_are_no_row_costs(ground, tmp_path):
    store = Store(tmp_path / "endtoend.json", {})
    assert row_cost_facts(store, ground) == {}
    store.keep("paired", "1 x 64", {"context": 64, "tiers": {"8": {"default": {"step_us": 1.0}}}})
    assert row_cost_facts(store, ground) == {}


def test_a_batch_that_the_device_cannot_hold_is_refused_before_anything_is_made(ground, monkeypatch):
    """With the number of requests that it could hold; a device that can hold it says how much is needed."""
    needed = paired.require_room(ground, 4, 64)
    options = ground.options
    for memory, allowed in ((int(needed / 0.9) + 1, True), (int(needed / 0.9) - 1000, False)):
        capability = replace(options.capability, memory_bytes=memory)
        sized = replace(ground, options=replace(options, capability=capability))
        if allowed:
            assert paired.require_room(sized, 4, 64) == needed
            continue
        monkeypatch.setattr(Ground, "body", lambda *_: pytest.fail("something was made"))
        with pytest.raises(LimitsError, match="at most 3 requests"):
            paired.measure_paired(sized, 4, 64)
