"""The reference strategies: what they declare is what they do."""

import subprocess
import sys

import pytest
import torch

from adaverify_contracts import Capability, DecodeBatch, GraphSupport, LayoutError, Limits
from adaverify_metadata import flatten_rows, uniform_rows
from adaverify_reference import hooks

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=60, page_size=4)
CPU = Capability("cpu", "cpu", "a cpu", None, 1, 0, assumed=True)
FIELDS = ("row_lens", "schedule_lens", "row_request", "row_token", "token_slot")


@pytest.fixture
def strategies():
    return {item.name: item for item in hooks.adaverify_register_decode_strategies()}


def batch_of(lens, kv_lens, padded_tokens, uniform=None):
    requests = len(lens)
    loc = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32)
    seq_lens = torch.tensor(
        [kv + n if n else 0 for kv, n in zip(kv_lens, lens, strict=True)], dtype=torch.int32
    )
    real = sum(n > 0 for n in lens)
    pages = torch.arange(requests * LIMITS.table_width, dtype=torch.int32).view(requests, -1)
    return DecodeBatch(
        query_start_loc=loc,
        seq_lens=seq_lens,
        block_table=pages,
        num_requests=real,
        num_tokens=sum(lens),
        padded_tokens=padded_tokens,
        max_query_len=max([1, *lens]),
        uniform_query_len=uniform,
    )


def test_what_is_declared(strategies):
    """Ragged needs device lengths; uniform must not claim them."""
    ragged, uniform = strategies["reference"], strategies["uniform"]
    assert (ragged.device_lengths, uniform.device_lengths) == (True, False)
    assert ragged.graph_support is GraphSupport.VARLEN_DECODE
    assert uniform.graph_support is GraphSupport.UNIFORM_BATCH
    assert ragged.requirements.unmet(CPU) == uniform.requirements.unmet(CPU) == ()
    assert ragged.priority == uniform.priority == 0


def test_the_design_example(strategies):
    """Lengths [3, 1, 4, 0] at ten padded rows."""
    builder = strategies["reference"].allocate(LIMITS, torch.device("cpu"), CPU)
    rows = builder.build(batch_of([3, 1, 4, 0], [7, 6, 8, 0], 10))
    assert rows.strategy == "reference"
    assert rows.row_lens.flatten().tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0]


@pytest.mark.parametrize("lens", [[4, 4], [1, 4, 2], [2], [0, 0], [3, 0, 1, 4]])
def test_reference_equals_the_pure_function_and_keeps_its_buffers(strategies, lens):
    """The same rows as the torch reference, at addresses that never change, however lengths change."""
    builder = strategies["reference"].allocate(LIMITS, torch.device("cpu"), CPU)
    addresses = {name: tensor.data_ptr() for name, tensor in builder.buffers.items()}
    builder.build(batch_of([4, 4, 4, 4], [9, 9, 9, 9], 16))
    batch = batch_of(lens, [5, 9, 2, 30][: len(lens)], 12)
    rows, expected = builder.build(batch), flatten_rows(batch, LIMITS)
    for name in FIELDS:
        assert torch.equal(getattr(rows, name), getattr(expected, name)), name
    assert {name: tensor.data_ptr() for name, tensor in builder.buffers.items()} == addresses


@pytest.mark.parametrize("length", [1, 2, 4])
def test_uniform_equals_the_pure_function(strategies, length):
    """One row a request; a padding request is a row of zeros."""
    builder = strategies["uniform"].allocate(LIMITS, torch.device("cpu"), CPU)
    batch = batch_of([length, length, 0], [5, 9, 0], 2 * length, uniform=length)
    rows, expected = builder.build(batch), uniform_rows(batch, LIMITS)
    for name in FIELDS:
        assert torch.equal(getattr(rows, name), getattr(expected, name)), name
    assert rows.row_lens[2].tolist() == [0] * length


def test_uniform_refuses_a_ragged_batch(strategies):
    """DeepSeek-v4.1-Flash-DGX-Sparks #6: a uniform path never takes ragged lengths."""
    builder = strategies["uniform"].allocate(LIMITS, torch.device("cpu"), CPU)
    with pytest.raises(LayoutError, match="ragged"):
        builder.build(batch_of([3, 1], [5, 9], 4))


def test_importing_and_registering_does_no_work():
    """Registration returns descriptors; torch is not even imported by the hooks module."""
    code = (
        "import sys\n"
        "from adaverify_reference import hooks\n"
        "assert len(hooks.adaverify_register_decode_strategies()) == 2\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "uniform"), [("reference", None), ("uniform", 3)])
def test_build_is_captured_and_replayed_with_other_lengths(strategies, name, uniform):
    """The declared graph support: one captured size, replayed with lengths it was not captured with."""
    device = torch.device("cuda")
    builder = strategies[name].allocate(LIMITS, device, CPU)

    def on_device(batch):
        return DecodeBatch(
            batch.query_start_loc.to(device),
            batch.seq_lens.to(device),
            batch.block_table.to(device),
            batch.num_requests,
            batch.num_tokens,
            batch.padded_tokens,
            batch.max_query_len,
            batch.uniform_query_len,
        )

    shapes = (
        [[3, 3, 3, 3], [3, 3, 0, 0]] if uniform else [[3, 3, 3, 3], [1, 4, 2, 4], [4, 0, 0, 0], [1, 1, 1, 1]]
    )
    static = on_device(batch_of(shapes[0], [5, 9, 2, 30], 12, uniform=uniform))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        builder.build(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = builder.build(static)
    pure = uniform_rows if uniform else flatten_rows
    for lens in shapes:
        batch = batch_of(lens, [11, 3, 25, 8], 12, uniform=uniform)
        static.query_start_loc.copy_(batch.query_start_loc)
        static.seq_lens.copy_(batch.seq_lens)
        graph.replay()
        torch.cuda.synchronize()
        expected = pure(batch, LIMITS)
        for field in FIELDS:
            assert torch.equal(getattr(rows, field).cpu(), getattr(expected, field)), (lens, field)
