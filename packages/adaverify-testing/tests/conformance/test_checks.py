"""What the kit judges besides the seeded faults: host values, refusals, declarations, and its own oracle."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from adaverify_contracts import LayoutError, Limits, LimitsError, Requirements, UnknownNameError
from adaverify_metadata import flatten_rows, paired_rows, uniform_rows, varlen_rows
from adaverify_reference import hooks as reference
from adaverify_testing import fake_capability
from adaverify_testing.conformance import conformance_checks, run_conformance
from adaverify_testing.conformance.batches import UNUSED_PAGE, cases
from adaverify_testing.conformance.oracle import differences, seen_entries
from adaverify_testing.conformance.subject import DEFAULT_LIMITS


@pytest.mark.parametrize("make", [flatten_rows, paired_rows, varlen_rows, uniform_rows])
@pytest.mark.parametrize("name", DEFAULT_LIMITS)
def test_the_oracle_agrees_with_every_torch_reference(make, name):
    """The contract in plain Python and the reference functions were written apart and find no difference."""
    limits = DEFAULT_LIMITS[name]
    for case in cases(limits, uniform=make is uniform_rows, count=8):
        rows = make(case.batch(limits, "cpu"), limits)
        assert [item.text() for item in differences(rows, case, limits)] == [], case.describe()


@pytest.mark.parametrize(
    "field", ["row_lens", "schedule_lens", "block_table", "row_request", "row_token", "token_slot"]
)
@pytest.mark.parametrize("make", [flatten_rows, paired_rows, varlen_rows])
def test_the_oracle_sees_one_changed_element(make, field):
    """Any element that a real row needs, changed by one, is found in its field or in the map beside it."""
    limits = DEFAULT_LIMITS["plain"]
    draw = random.Random(3)
    for case in list(cases(limits, uniform=False))[5:]:
        rows = make(case.batch(limits, "cpu"), limits)
        tensor = getattr(rows, field)
        if case.tokens == 0:
            continue
        token = draw.randrange(case.tokens)
        slot = int(rows.token_slot[token])
        place = {
            "block_table": (slot // rows.tokens_per_row, 0),
            "row_request": (slot // rows.tokens_per_row,),
            "token_slot": (token,),
        }.get(field, (slot // rows.tokens_per_row, slot % rows.tokens_per_row))
        if field == "block_table" and int(rows.row_lens[place[0], -1]) == 0:
            continue
        tensor[place] += 1
        found = {item.field for item in differences(rows, case, limits)}
        assert found & {field, "row_token", "token_slot"}, (field, case.describe())


def test_the_oracle_sees_merged_and_split_runs():
    """Request indices equal across requests, or different within one, are both found."""
    limits = DEFAULT_LIMITS["plain"]
    case = list(cases(limits, uniform=False))[5]
    for row, value in ((limits.max_query_len, 0), (1, 77)):
        rows = varlen_rows(case.batch(limits, "cpu"), limits)
        rows.request_indices[row] = value
        assert "request_indices" in {item.field for item in differences(rows, case, limits)}


def test_local_lengths_by_the_definition():
    """Position p lives on rank (p // interleave) % size."""
    limits = DEFAULT_LIMITS["context parallel"]
    for length in range(-2, 40):
        size, rank, turn = 2, 1, 2
        assert seen_entries(length, limits) == sum((p // turn) % size == rank for p in range(max(0, length)))


@pytest.mark.parametrize("name", ["reference", "uniform"])
def test_the_embedded_strategies_pass(name):
    """Every check passes on both, none is skipped, and the report carries a latency."""
    strategy = {item.name: item for item in reference.adaverify_register_decode_strategies()}[name]
    found = run_conformance(strategy)
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, found.text()
    assert tuple(outcome.check for outcome in found.outcomes) == conformance_checks()
    assert found.median_us > 0
    assert "without the strategy's code" in found["capture_and_replay"].message


def test_rows_that_follow_the_host_are_caught(own):
    """Device lengths [1, 2], host placeholder [2, 1]: the host's total counts as the truth (vllm #52783)."""

    class Host(own.Rows):
        def owner(self, batch, token):
            found = super().owner(batch, token)
            return torch.where(token < batch.num_tokens, found, batch.requests)

    found = run_conformance(own.descriptor(Host), limits=own.limits)
    assert "the rows follow the host" in found["stale_host_lengths"].message
    assert "row_semantics" not in found.failures


def test_requests_swapped_in_a_table_are_caught(own):
    """All rows read the pages of request 0 (vllm #52783)."""

    class First(own.Rows):
        def compute(self, batch):
            return super().compute(
                replace(batch, block_table=batch.block_table[:1].expand_as(batch.block_table))
            )

    found = run_conformance(own.descriptor(First), limits=own.limits, checks=("request_order",))
    assert "block_table[" in found["request_order"].message


def test_unused_columns_handed_on_are_caught(own):
    """A row copies more pages than it needs, and among them what is no page."""

    class Whole(own.Rows):
        def compute(self, batch):
            found = super().compute(batch)
            owner = self.owner(batch, self.token(batch)).clamp(max=max(0, batch.requests - 1))
            return found | {"block_table": batch.block_table[owner]}

    found = run_conformance(own.descriptor(Whole), limits=own.limits, checks=("padding",))
    assert f"got {UNUSED_PAGE}" in found["padding"].message
    assert "a valid page id" in found["padding"].message


@pytest.mark.parametrize("raises", [None, ValueError("too large"), LayoutError("no")])
def test_refusals_without_a_layout_error_are_caught(own, raises):
    """Built anyway, another type, and a LayoutError that says neither what arrived nor what is allowed."""

    class Loose(own.Rows):
        def build(self, batch):
            if raises is not None and not self.fits(batch):
                raise raises
            return super().build(batch) if self.fits(batch) else None

    found = run_conformance(own.descriptor(Loose), limits=own.limits, checks=("refusals",))
    assert found.failures == ("refusals",)
    words = {
        None: "was built",
        ValueError: "raised ValueError: too large",
        LayoutError: "neither what arrived",
    }
    assert words[raises if raises is None else type(raises)] in found["refusals"].message


def test_a_build_that_raises_names_the_batch(own):
    """An untyped error becomes a message with the batch's numbers."""

    class Raises(own.Rows):
        def compute(self, batch):
            raise IndexError("out of range")

    found = run_conformance(own.descriptor(Raises), limits=own.limits)
    message = found["dtypes"].message
    assert "build raised IndexError: out of range" in message
    assert "test_checks.py:" in message and "in compute" in message
    assert "query lengths [" in message
    assert found.failures == ("dtypes",)
    for check in ("row_semantics", "no_allocation", "latency"):
        assert found[check].status == "skipped"
        assert found[check].message.startswith("not run: build raised IndexError"), found[check].message
        assert found[check].message.endswith("see the check 'dtypes'")


def test_unmet_requirements_fail_one_check_and_skip_the_rest(own):
    """Never a pass: the reasons are listed, all of them."""
    needs = Requirements(device_types=("cuda",), architectures=("sm100",))
    found = run_conformance(own.descriptor(own.Rows, requirements=needs), limits=own.limits)
    assert found.failures == ("requirements",) and not found.passed
    assert "device type is cpu, needs cuda" in found["requirements"].message
    assert "architecture is cpu, needs sm100" in found["requirements"].message
    assert {item.status for item in found.outcomes[1:]} == {"skipped"}
    assumed = fake_capability("sm100")
    passes = run_conformance(
        own.descriptor(own.Rows, requirements=needs), limits=own.limits, capability=assumed
    )
    assert passes.passed and passes.assumed and passes.architecture == "sm100"


def test_limits_that_are_not_served_are_named(own):
    """Some refused is a remark, all refused a failure, and ``supports`` has to agree with ``allocate``."""

    def only_64(limits):
        return () if limits.page_size == 64 else (f"page size {limits.page_size}, needs 64",)

    sizes = {"a": own.limits, "b": Limits(2, 1, 100, 64)}
    found = run_conformance(own.descriptor(own.Rows, supports=only_64), limits=sizes)
    assert found.passed
    assert "a not served: page size 16, needs 64" in found["allocation"].message
    none = run_conformance(own.descriptor(own.Rows, supports=only_64), limits=own.limits)
    assert none.failures == ("allocation",) and "serves none" in none["allocation"].message

    def refuse(limits, device, capability):
        raise LimitsError("no")

    lying = own.descriptor(own.Rows, supports=lambda limits: (), allocate=refuse)
    assert "allocate raised LimitsError" in run_conformance(lying, limits=own.limits)["allocation"].message


def test_a_builder_with_another_name_is_caught(own):
    """The rows would be reported under a strategy that nobody registered."""
    made = own.descriptor(
        own.Rows, allocate=lambda limits, device, capability: own.Rows(limits, device, "other")
    )
    found = run_conformance(made, limits=own.limits, checks=("allocation", "dtypes"))
    assert "calls itself 'other'" in found["allocation"].message
    assert "call themselves 'other'" in found["dtypes"].message


def test_supports_that_raises_is_named_with_its_line(own):
    """The question about limits is the strategy's code too."""

    def supports(limits):
        return limits.no_such_field

    found = run_conformance(own.descriptor(own.Rows, supports=supports), limits=own.limits)
    message = found["allocation"].message
    assert "supports of strategy 'flat' raised AttributeError" in message
    assert "test_checks.py:" in message and "in supports" in message
    assert found.failures == ("allocation",)


def test_buffers_that_are_no_tensors_fail_one_check(own):
    """What the kit cannot read is found where it is made, and no check blames the strategy's build."""

    class Odd(own.Rows):
        @property
        def buffers(self):
            return {**self._buffers, "scale": 0.5}

    found = run_conformance(own.descriptor(Odd), limits=own.limits)
    assert found.failures == ("allocation",)
    assert "buffers['scale'] is on float, not a tensor on cpu" in found["allocation"].message


def test_an_error_of_the_kit_is_not_called_the_strategy_s(own, monkeypatch):
    """No line of the strategy was running, so the message does not name one."""
    from adaverify_testing.conformance.checks import semantics

    monkeypatch.setattr(semantics, "differences", int)
    found = run_conformance(own.descriptor(own.Rows), limits=own.limits, checks=("padding",))
    assert "no line of the strategy was running: TypeError" in found["padding"].message


def test_an_unknown_check_is_refused(own):
    """The message lists those there are."""
    with pytest.raises(UnknownNameError, match="row_semantics"):
        run_conformance(own.descriptor(own.Rows), checks=("row_semantic",))
