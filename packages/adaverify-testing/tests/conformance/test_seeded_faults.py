"""Ten strategies, each broken in one way: the kit catches each by the check one would expect, and says so."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import GraphSupport
from adaverify_testing.conformance import run_conformance


def report(own, kind, **changes):
    return run_conformance(own.descriptor(kind, **changes), limits=own.limits)


def caught(found, check, *words):
    """Require that ``check`` failed and that its message has every one of ``words``."""
    assert check in found.failures, found.text()
    message = found[check].message
    for word in (*words, "contract:" if check != "dtypes" else ""):
        assert word in message, message
    return message


@pytest.mark.parametrize("kind", ["Rows", "UniformRows", "GroupedRows"])
def test_a_correct_strategy_passes(own, kind):
    """No check fails on the strategy that the faults below start from."""
    found = report(own, getattr(own, kind))
    assert found.passed and not found.failures, found.text()
    assert {outcome.status for outcome in found.outcomes} == {"passed"}
    assert found.median_us > 0


def test_an_off_by_one_row_length(own):
    """Every row sees one position too many; the message names request, row, both numbers and the rule."""

    class OffByOne(own.Rows):
        def seen(self, batch, request, token):
            return super().seen(batch, request, token) + 1

    found = report(own, OffByOne)
    message = caught(found, "row_semantics", "row_lens[", "got ", "expected ", "request 0", "row 0")
    assert "docs/explanation/metadata.md" in message
    assert {"dtypes", "no_host_read", "refusals", "determinism"}.isdisjoint(found.failures)


def test_a_negative_length(own):
    """A KV length below the query length gives -1, read as 4294967295 (vllm's sparse indexer)."""

    class Negative(own.Rows):
        def clamp(self, lens):
            return lens

    found = report(own, Negative)
    message = caught(found, "row_semantics", "row_lens[", "got -", "expected 0", "clamped at 0")
    assert "KV lengths below the query length" in message
    assert "stale_tail" not in found.failures


def test_a_stale_tail(own):
    """5 requests padded to 8 after a batch of 8: the old tail stays (vllm #47066)."""

    class StaleTail(own.Rows):
        def build(self, batch):
            kept = {name: tensor.clone() for name, tensor in self._buffers.items()}
            rows = super().build(batch)
            padding = rows.row_token[:, 0] < 0
            for name in ("row_lens", "schedule_lens"):
                view = getattr(rows, name)
                view.copy_(torch.where(padding[:, None], kept[name][: len(view)], view))
            return rows

    found = report(own, StaleTail)
    caught(
        found, "stale_tail", "row_lens[", "expected 0", "the batch before", "a padding slot", "0 for padding"
    )
    assert {"row_semantics", "no_host_read", "no_allocation"}.isdisjoint(found.failures)


def test_a_wrong_padding_id(own):
    """Padding rows carry request 0: a phantom request (vllm-ascend #14510)."""

    class WrongId(own.Rows):
        def padding_id(self, batch, rows):
            return torch.zeros_like(rows)

    found = report(own, WrongId)
    caught(found, "padding", "row_request[", "got 0", "R + its own row number")
    assert "row_semantics" not in found.failures


def test_an_allocation_in_build(own):
    """Rows come in fresh storage, so a graph's reader would look at an old address."""

    class Fresh(own.Rows):
        def build(self, batch):
            rows = super().build(batch)
            object.__setattr__(rows, "row_lens", rows.row_lens.clone())
            return rows

    found = report(own, Fresh)
    caught(found, "no_allocation", "DecodeRows.row_lens is fresh storage", "buffers")
    assert "row_semantics" not in found.failures


def test_storage_kept_beyond_a_build(own):
    """Every build leaks a tensor."""

    class Leak(own.Rows):
        def build(self, batch):
            self.leak = [*getattr(self, "leak", ()), torch.empty(3)]
            return super().build(batch)

    found = report(own, Leak)
    assert found.failures == ("no_allocation",), found.text()
    caught(found, "no_allocation", "still alive", "empty")


@pytest.mark.parametrize("read", ["item", "tolist", "numpy", "bool", "mask", "nonzero"])
def test_a_host_read(own, read):
    """Any way to look at a device length; the message names it and the line."""
    reads = {
        "item": lambda start: start[-1].item(),
        "tolist": lambda start: start.tolist(),
        "numpy": lambda start: start.numpy(),
        "bool": lambda start: bool(start[-1] > 0),
        "mask": lambda start: start[start > 0],
        "nonzero": lambda start: start.nonzero(),
    }

    class Reads(own.Rows):
        def build(self, batch):
            reads[read](batch.query_start_loc)
            return super().build(batch)

    found = run_conformance(
        own.descriptor(Reads), limits=own.limits, checks=("row_semantics", "no_host_read")
    )
    assert found.failures == ("no_host_read",), found.text()
    caught(found, "no_host_read", "reads a device value on the host", "test_seeded_faults.py:")


def test_a_widened_dtype(own):
    """Request indices leave as int64; the kernel would read every second word."""

    class Wide(own.GroupedRows):
        def __init__(self, limits, device, name):
            super().__init__(limits, device, name)
            self._buffers["wide"] = torch.zeros(limits.max_tokens, dtype=torch.int64)

        def view(self, batch):
            own = {name: tensor for name, tensor in self._buffers.items() if name != "wide"}
            self._buffers, kept = own, self._buffers
            rows = super().view(batch)
            self._buffers = kept
            wide = kept["wide"][: batch.padded_tokens]
            wide.copy_(rows.row_request)
            object.__setattr__(rows, "request_indices", wide)
            return rows

    found = report(own, Wide)
    caught(found, "dtypes", "request_indices", "torch.int64", "int32")
    assert "row_semantics" not in found.failures


def test_a_moved_buffer(own):
    """A buffer is replaced by a larger one: captured graphs read where it was (onnxruntime-genai #2557)."""

    class Moved(own.Rows):
        def build(self, batch):
            self._buffers["token_slot"] = torch.zeros_like(self._buffers["token_slot"])
            return super().build(batch)

    found = report(own, Moved)
    caught(found, "address_stability", "buffers['token_slot'] moved from 0x", "addresses never change")
    assert "row_semantics" not in found.failures


def test_a_non_deterministic_order(own):
    """Rows in another order each time: each build is right on its own, and ranks disagree."""

    class Shuffled(own.Rows):
        def token(self, batch):
            return torch.randperm(batch.padded_tokens)

    found = report(own, Shuffled)
    caught(found, "determinism", "two builds of one batch differ", "equal rows")
    assert "no_host_read" not in found.failures


def test_an_over_declared_graph_support(own):
    """Lengths are baked in at capture: VARLEN_DECODE is declared, and a replay keeps the old rows."""

    class Baked(own.Rows):
        def owner(self, batch, token):
            # Right in every eager build; a graph keeps the numbers of its capture.
            lengths = batch.query_start_loc.tolist()
            starts = torch.tensor(lengths[1:], dtype=torch.int64)
            return torch.searchsorted(starts, token, right=True)

    found = report(own, Baked)
    caught(found, "graph_support", "declares VARLEN_DECODE and does not survive it", "captured with")
    assert "row_semantics" not in found.failures
    honest = report(own, Baked, graph_support=GraphSupport.NEVER)
    assert "graph_support" not in honest.failures
    assert honest["graph_support"].status == "skipped"


def test_graph_support_beyond_uniform_without_device_lengths(own):
    """A uniform strategy cannot promise ragged replays."""
    found = report(own, own.UniformRows, graph_support=GraphSupport.VARLEN_DECODE)
    assert found.failures == ("graph_support",)
    caught(found, "graph_support", "declared without device_lengths", "declare UNIFORM_BATCH")
