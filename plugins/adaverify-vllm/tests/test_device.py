"""The bridge's device work on Hopper, against the torch form and the host's; nothing waits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify_vllm.assignment import BatchAssigner
from adaverify_vllm.assignment.reference import assign_boundaries
from adaverify_vllm.rows import wrap
from adaverify_vllm.rows.launch import write_rows
from adaverify_vllm.rows.reference import write_rows_reference

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.sm90,
    pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0"),
]
CUDA = "cuda"


@pytest.mark.parametrize("requests", [1, 16, 64, 256, 1024])
def test_the_assignment_of_real_batches(requests):
    """Equal to the torch form on the same device for every budget tried."""
    rng = np.random.default_rng(requests)
    table = torch.zeros((requests, 9), device=CUDA)
    table[:, :7] = torch.from_numpy(rng.uniform(0, 1, (requests, 7)).astype(np.float32))
    buffer = torch.zeros(requests + 1, dtype=torch.int32, device=CUDA)
    made = BatchAssigner(table, buffer, drafts=7, bonus=1, backend="triton")
    made.warm_up()
    rows = torch.from_numpy(rng.permutation(requests).astype(np.int64)).to(CUDA)
    scheduled, certain = np.full(requests, 7, np.int32), np.ones(requests, np.int32)
    for budget in (0, 1, 3 * requests, 7 * requests - 1, 7 * requests):
        made.stage(scheduled, certain)
        made.assign(rows, budget, requests + budget)
        want = assign_boundaries(
            table[:, :7],
            rows,
            torch.from_numpy(scheduled).to(CUDA),
            torch.from_numpy(certain).to(CUDA),
            budget,
            1,
        )
        assert torch.equal(made.cu_num_logits[: requests + 1], want.cu_num_logits)
        assert torch.equal(buffer, want.query_start_loc)


@pytest.mark.parametrize("requests", [1, 16, 64, 256])
def test_the_rows_of_real_batches(requests):
    """A table 2048 wide, padded rows behind; every column equal."""
    rng = np.random.default_rng(requests)
    lengths = rng.integers(1, 9, requests)
    boundaries = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(CUDA)
    seq_lens = torch.from_numpy(rng.integers(8, 16384, requests).astype(np.int32)).to(CUDA)
    table = torch.from_numpy(rng.integers(0, 10**6, (requests, 2048)).astype(np.int32)).to(CUDA)
    tokens = int(lengths.sum()) + 5
    found = []
    for write in (write_rows_reference, write_rows):
        outputs = tuple(
            torch.full(shape, -1, dtype=torch.int32, device=CUDA)
            for shape in ((tokens,), (tokens, 2048), (tokens,))
        )
        write(boundaries, seq_lens, table, outputs, 8 if write is write_rows_reference else requests)
        found.append(outputs)
    for want, got in zip(*found, strict=True):
        assert torch.equal(want, got)


def test_rows_can_be_replayed_with_other_lengths():
    """The launch is capturable and reads lengths when it runs."""
    boundaries = torch.tensor([0, 3, 4, 8, 8], dtype=torch.int32, device=CUDA)
    seq_lens = torch.tensor([10, 7, 12, 0], dtype=torch.int32, device=CUDA)
    table = torch.arange(8, dtype=torch.int32, device=CUDA).view(4, 2)
    outputs = tuple(torch.zeros(shape, dtype=torch.int32, device=CUDA) for shape in ((10,), (10, 2), (10,)))
    write_rows(boundaries, seq_lens, table, outputs, 4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write_rows(boundaries, seq_lens, table, outputs, 4)
    boundaries.copy_(torch.tensor([0, 1, 2, 2, 6], dtype=torch.int32))
    seq_lens.copy_(torch.tensor([5, 6, 7, 9], dtype=torch.int32))
    graph.replay()
    assert outputs[0].tolist() == [5, 6, 6, 7, 8, 9, 0, 0, 0, 0]
    assert outputs[1][:6, 0].tolist() == [0, 2, 6, 6, 6, 6]


def builder(tokens, width):
    """The buffers and settings of vLLM's row builder that the seam reads; vLLM itself is not needed."""
    return SimpleNamespace(
        supports_varlen=False,
        vllm_config=SimpleNamespace(
            speculative_config=SimpleNamespace(enable_adaptive_verification=True),
            scheduler_config=SimpleNamespace(max_num_seqs=64),
        ),
        decode_seq_lens_buffer=torch.zeros(tokens, dtype=torch.int32, device=CUDA),
        expanded_block_table_buffer=torch.zeros((tokens, width), dtype=torch.int32, device=CUDA),
        decode_lens_buffer=torch.zeros(tokens, dtype=torch.int32, device=CUDA),
    )


def refused(*_, **__):
    raise AssertionError("a ragged batch was left to vLLM")


def test_the_seam_writes_a_captured_batch_as_its_torch_form():
    """Captured with one batch and replayed with others: the same views, equal to the bit."""
    rng = np.random.default_rng(2)
    requests, tokens, width = 24, 200, 300
    ends = torch.zeros(requests + 1, dtype=torch.int32, device=CUDA)
    seq_lens = torch.zeros(requests, dtype=torch.int32, device=CUDA)
    table = torch.from_numpy(rng.integers(0, 10**6, (requests, width)).astype(np.int32)).to(CUDA)
    host_lens = torch.full((requests,), 8)
    host_lens[0] = 7
    made = {backend: builder(tokens, width) for backend in ("torch", "triton")}

    def prepare(backend):
        return wrap(refused, backend=backend)(
            made[backend],
            seq_lens=seq_lens,
            block_table=table,
            decode_lens=made[backend].decode_lens_buffer[:requests],
            decode_lens_cpu=host_lens,
            query_start_loc=ends[:requests],
            num_decodes=requests,
            num_decode_tokens=tokens,
            use_native=False,
            next_n=8,
            max_decode_len=8,
        )

    prepare("triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        views = prepare("triton")
    for _ in range(3):
        lengths = rng.integers(0, 9, requests)
        ends.copy_(torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)))
        seq_lens.copy_(torch.from_numpy((lengths + rng.integers(0, 9000, requests)).astype(np.int32)))
        for one in made.values():
            one.expanded_block_table_buffer.fill_(-1)
        graph.replay()
        want = prepare("torch")
        assert views[3:] == want[3:] == (tokens, False)
        for mine, theirs in zip(views[:3], want[:3], strict=True):
            assert torch.equal(mine, theirs)
    assert views[0].data_ptr() == made["triton"].decode_seq_lens_buffer.data_ptr()


def test_steps_on_the_device_are_those_of_the_host(drive):
    """The same requests, prices and confidences: totals and boundaries are equal, step by step."""
    made = [drive(slots=64), drive(slots=64, device=CUDA, backend="triton")]
    names = [f"r{i}" for i in range(40)]
    for one in made:
        one.price(lambda tokens: 4.0 + 0.1 * tokens)
        one.add(*names)
    rng = np.random.default_rng(5)
    for _ in range(6):
        drawn = {name: rng.uniform(0.2, 0.99, 7) for name in names}
        found = [one.step(dict.fromkeys(names, 7)) for one in made]
        assert found[0] == found[1]
        for one in made:
            one.record(drawn)
            # Arrived on both, so that both plan from the same history.
            torch.cuda.synchronize()
    assert found[0][0] < 40 * 8


def test_nothing_waits(drive):
    """Under torch's check for synchronisation, with the queue full, every call of a step returns."""
    made = drive(slots=64, device=CUDA, backend="triton")
    made.price(lambda tokens: 4.0 + 0.1 * tokens)
    names = [f"r{i}" for i in range(40)]
    made.add(*names)
    manager, state = made.manager, made.state
    tokens, drafts = dict.fromkeys(names, 8), {name: [-1] * 7 for name in names}
    drafted, scheduled = np.full(40, 7, np.int32), np.full(40, 8, np.int32)
    offsets = np.arange(41, dtype=np.int32) * 8
    slots = np.array([state.req_id_to_index[name] for name in names])
    rows = torch.from_numpy(slots).to(CUDA)
    confidences = torch.rand((64, 7), device=CUDA)

    class Batch:
        num_reqs, idx_mapping, idx_mapping_np = 40, rows, slots

    def step():
        manager.get_num_tokens(tokens, drafts)
        manager.compact_batch(drafted, scheduled, offsets)
        manager.reallocate_drafts(names, rows)
        manager.record_confidences(confidences, Batch)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    # A second of work in front of the steps: whoever waits for the device waits for that.
    torch.cuda._sleep(2 * 10**9)
    done = torch.cuda.Event()
    done.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
        assert not done.query(), "a call of a step waited for the device"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
