"""Ten strategies, each broken in one way: the kit catches each by the check one would expect, and says so."""

from __future__ import annotations

import ctypes

import numpy as np
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


def _swallowed(start):
    try:
        return start[-1].item()
    except Exception:  # noqa: BLE001 - as a careless author would
        return 0


HOST_READS = {
    "repeat_interleave": lambda start: torch.repeat_interleave(torch.arange(len(start)), start),
    "bincount": lambda start: torch.bincount(start),
    "argwhere": lambda start: torch.argwhere(start),
    "set behind a mask": lambda start: start.clone().__setitem__(start >= 0, torch.zeros_like(start)),
    "from_dlpack": np.from_dlpack,
    "to_dlpack": lambda start: torch.utils.dlpack.to_dlpack(start),
    "asarray": np.asarray,
    "cpu": lambda start: start.cpu(),
    "repr": repr,
    "tensor": lambda start: torch.tensor([start[0], start[1]]),
    "tensor_split": lambda start: torch.tensor_split(torch.arange(4), start.long().clamp(max=4)),
    "allclose": lambda start: torch.allclose(start.float(), start.float()),
    "swallowed": _swallowed,
}


@pytest.mark.parametrize("read", HOST_READS)
def test_a_hidden_host_read(own, read):
    """Shapes that follow values, exports of memory, and a read whose error is swallowed."""

    class Reads(own.Rows):
        def build(self, batch):
            HOST_READS[read](batch.query_start_loc)
            return super().build(batch)

    found = run_conformance(
        own.descriptor(Reads), limits=own.limits, checks=("row_semantics", "no_host_read")
    )
    assert found.failures == ("no_host_read",), found.text()
    caught(found, "no_host_read", "reads a device value on the host")


def test_a_shape_that_depends_on_no_value(own):
    """repeat_interleave with output_size, and one value behind a mask, wait for nothing."""

    class Quiet(own.Rows):
        def build(self, batch):
            ones = torch.ones_like(batch.seq_lens)
            torch.repeat_interleave(torch.arange(len(ones)), ones, output_size=len(ones))
            batch.seq_lens.clone()[batch.seq_lens > 3] = 0
            return super().build(batch)

    found = run_conformance(own.descriptor(Quiet), limits=own.limits, checks=("no_host_read",))
    assert found.passed, found.text()


def test_a_host_read_that_torch_does_not_see(own):
    """Through the address: rows are right in every build, and follow nothing when it is repeated."""

    class Address(own.Rows):
        def owner(self, batch, token):
            starts = batch.query_start_loc
            values = (ctypes.c_int32 * starts.numel()).from_address(starts.data_ptr())
            return torch.searchsorted(torch.tensor(values[1:], dtype=torch.int64), token, right=True)

    never = own.descriptor(Address, graph_support=GraphSupport.NEVER)
    found = run_conformance(never, limits=own.limits)
    assert found.failures == ("no_host_read",), found.text()
    caught(found, "no_host_read", "unseen by torch", "got ", "built with query lengths")
    assert report(own, Address).failures == ("graph_support",)


@pytest.mark.parametrize("name", ["query_start_loc", "seq_lens", "block_table"])
def test_a_changed_input(own, name):
    """A scratch value is written where the batch lies; the next reader of the batch is misled."""

    class Changes(own.Rows):
        def build(self, batch):
            rows = super().build(batch)
            {
                "query_start_loc": batch.query_start_loc.sub_,
                "seq_lens": lambda n: batch.seq_lens.clamp_(min=4 * n),
                "block_table": batch.block_table.add_,
            }[name](1)
            return rows

    found = run_conformance(
        own.descriptor(Changes), limits=own.limits, checks=("row_semantics", "inputs_unchanged")
    )
    assert found.failures == ("inputs_unchanged",), found.text()
    caught(found, "inputs_unchanged", f"changes its input DecodeBatch.{name}", "never writes to the batch")


def test_an_invalid_page_beyond_a_row(own):
    """Columns that no length needs hold an id that no cache has: prefetching kernels read it."""

    class Beyond(own.Rows):
        def compute(self, batch):
            found = super().compute(batch)
            needed = torch.arange(self.limits.table_width) * self.limits.page_size < found["row_lens"]
            return found | {"block_table": torch.where(needed, found["block_table"], 1 << 20)}

    found = report(own, Beyond)
    caught(found, "padding", "got 1048576", "a valid page id, 0 .. ")
    assert "row_semantics" not in found.failures


def test_an_allocation_on_the_first_use_of_a_shape(own):
    """A cache by padded tokens: every shape allocates once, perhaps inside a capture."""

    class Caches(own.Rows):
        def token(self, batch):
            kept = self.__dict__.setdefault("kept", {})
            if batch.padded_tokens not in kept:
                kept[batch.padded_tokens] = torch.arange(batch.padded_tokens)
            return kept[batch.padded_tokens]

    found = report(own, Caches)
    assert found.failures == ("no_allocation",), found.text()
    caught(found, "no_allocation", "first build of", "padded tokens", "arange")


@pytest.mark.parametrize("shared", ["builder", "buffers"])
def test_buffers_of_two_allocations(own, shared):
    """A factory that keeps what it made: the second verifier of a process overwrites the first one's rows."""
    made = {}

    def allocate(limits, device, capability):
        kept = made.setdefault(limits, own.Rows(limits, device, "flat"))
        if shared == "builder":
            return kept
        fresh = own.Rows(limits, device, "flat")
        fresh.buffers["row_lens"] = kept.buffers["row_lens"]
        return fresh

    found = report(own, own.Rows, allocate=allocate)
    assert found.failures == ("allocation",), found.text()
    caught(
        found,
        "allocation",
        f"two allocations share {'the same builder' if shared == 'builder' else 'buffers['}",
    )


def test_a_constant_that_builders_share_is_no_fault(own):
    """What no build writes may be made once a process."""
    constant = torch.arange(7, dtype=torch.int32)

    class Shares(own.Rows):
        @property
        def buffers(self):
            return {**self._buffers, "constant": constant}

    assert not run_conformance(own.descriptor(Shares), limits=own.limits, checks=("allocation",)).failures


def test_a_fault_that_comes_with_a_count(own):
    """Every 100th build is off by one: no batch of the kit is at fault, the count is."""

    class Counts(own.Rows):
        builds = 0

        def seen(self, batch, request, token):
            self.builds += 1
            return super().seen(batch, request, token) + (self.builds % 100 == 0)

    found = run_conformance(own.descriptor(Counts), limits=own.limits, checks=("determinism",))
    caught(found, "determinism", "build number 100 of one batch differs", "row_lens", "however many builds")


def test_wrong_rows_are_not_blamed_on_what_a_check_is_about(own):
    """Rows that are wrong in every batch: no check diagnoses host lengths, order, tails or replays."""

    class OffByOne(own.Rows):
        def seen(self, batch, request, token):
            return super().seen(batch, request, token) + 1

    found = report(own, OffByOne)
    for check in ("stale_tail", "stale_host_lengths", "request_order", "graph_support"):
        words = "rows are wrong already in a plain batch: see the checks row_semantics and padding"
        assert found[check].message.startswith(words), found[check].message


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
