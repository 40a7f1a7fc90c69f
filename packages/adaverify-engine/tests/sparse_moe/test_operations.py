"""Every kernel against its reference: in Triton's interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import LayoutError
from adaverify_engine.sparse_moe.ops.attend_selected.launch import AttendLaunch, AttendSelected
from adaverify_engine.sparse_moe.ops.gated.launch import gated
from adaverify_engine.sparse_moe.ops.join_residual.launch import join_residual
from adaverify_engine.sparse_moe.ops.place_tokens.launch import place_tokens
from adaverify_engine.sparse_moe.ops.rotation import rotation_tables
from adaverify_engine.sparse_moe.ops.route_tokens.launch import route_tokens
from adaverify_engine.sparse_moe.ops.select_entries.launch import select_entries
from adaverify_engine.sparse_moe.ops.shape_queries.launch import shape_queries
from adaverify_engine.sparse_moe.ops.store_entries.launch import store_entries
from adaverify_metadata import unpack_pages

# Triton's interpreter turns loop bounds into integers in a way that NumPy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
NAN = float("nan")
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def close(left, right, dtype=torch.float32):
    bound = CLOSE[dtype]
    torch.testing.assert_close(left.float(), right.float(), rtol=bound, atol=bound)


def same_codes(got, want):
    """Compare e4m3 values: equal, or neighbours where a value lies on a boundary.

    Triton's interpreter loses the carry of a mantissa that rounds up to the next power of two: such a value
    comes out half as large, for one in fifty. A GPU has no such excuse.
    """
    halved = (got * 2 - want).abs() <= 1e-6 * want.abs()
    halved &= want != 0
    most = 0.0 if got.is_cuda else 0.04
    assert float(halved.float().sum()) <= most * float((want != 0).sum())
    near = (got - want).abs() <= 0.13 * want.abs() + 1e-6
    assert bool((near | halved).all())
    assert float((got == want).float().mean()) > 0.94


@pytest.fixture
def draw(moe):
    """Draw from one seeded source, onto the device at hand."""
    made = torch.Generator().manual_seed(11)

    def normal(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=made).to(moe.device, dtype)

    return normal


@pytest.fixture
def step(moe):
    """Tokens of three requests, one without any, with padding behind them."""

    def make(query=(8, 0, 3), lens=(97, 40, 6), padding=3, page=8):
        limits = moe.limits(page=page)
        width = limits.table_width
        table = (torch.randperm(3 * width, generator=torch.Generator().manual_seed(1)) + 1).int()
        table = table.view(3, width).to(moe.device)
        staged = moe.stage(limits, list(query), list(lens), table, padding=padding, device=moe.device)
        kv_lens = torch.tensor(lens, dtype=torch.int32, device=moe.device)
        return staged, kv_lens, table

    return make


def placed(step_of, backend="torch", vocabulary=97, page=8):
    staged, kv_lens, table = step_of
    request, offset = staged.assignment.token_request, staged.assignment.token_offset
    return place_tokens(
        request, offset, kv_lens, table, ratio=4, page=page, vocabulary=vocabulary, backend=backend
    )


def test_places_are_where_the_tokens_are(step):
    """Written out by hand for a request of 6 tokens that gets 3: positions 6, 7, 8; 7 completes entry 1."""
    one = step()
    for backend in ("torch", "triton"):
        found = placed(one, backend)
        table = one[2]
        assert found.position.tolist() == [*range(97, 105), 6, 7, 8, 0, 0, 0]
        assert found.visible.tolist() == [24, 24, 25, 25, 25, 25, 26, 26, 1, 2, 2, 0, 0, 0]
        want = [-1] * 14
        want[2], want[6] = int(table[0, 3]) * 8, int(table[0, 3]) * 8 + 1
        want[9] = int(table[2, 0]) * 8 + 1
        assert found.cell.tolist() == want
        assert found.ids[11:].tolist() == [0, 0, 0]
        assert len(set(found.ids[:11].tolist())) > 8


@DTYPES
def test_entries_are_normed_rotated_quantised_and_stored(draw, step, dtype):
    """Base, own entries and both pools, from poisoned pools, whole and where nothing may be written."""
    places = placed(step(query=(3, 0, 2), padding=1))
    tokens, rank, latent, rope, dim = len(places.cell), 24, 32, 16, 32
    mixed = draw(tokens, rank + latent + rope + dim + 5, dtype=dtype)
    cosine, sine = rotation_tables(300, rope, mixed.device)
    pages = 80
    found = {}
    for backend in ("torch", "triton"):
        latents = torch.zeros(pages * 8, latent + rope, dtype=dtype, device=mixed.device)
        index = torch.zeros(pages, 8, 1, dim + 4, dtype=torch.uint8, device=mixed.device)
        base, own = store_entries(
            mixed, places, cosine, sine, latents, index,
            rank=rank, latent=latent, index_dim=dim, backend=backend,
        )  # fmt: skip
        codes, scales = unpack_pages(index, torch.arange(pages, device=mixed.device))
        found[backend] = base, own, latents, codes, scales
    for got, want in zip(found["triton"][:3], found["torch"][:3], strict=True):
        close(got, want, dtype)
    same_codes(found["triton"][3], found["torch"][3])
    close(found["triton"][4], found["torch"][4])
    cells = places.cell[places.cell >= 0]
    stored = found["triton"][2].any(1).nonzero().flatten()
    assert sorted(stored.tolist()) == sorted(cells.tolist())
    assert sorted(found["triton"][3].any(2).flatten().nonzero().flatten().tolist()) == sorted(cells.tolist())
    close(found["triton"][2][cells], found["triton"][1][places.cell >= 0], dtype)


def test_rotation_turns_pairs_and_keeps_their_length(draw, moe):
    """Scores of rotated queries and keys depend on the distance of their positions alone."""
    from adaverify_engine.sparse_moe.ops.rotation import rotated

    cosine, sine = rotation_tables(64, 16, moe.device)
    query, key = draw(1, 24), draw(1, 24)
    scores = []
    for at, other in ((5, 2), (40, 37)):
        q = rotated(query, cosine[at], sine[at])
        k = rotated(key, cosine[other], sine[other])
        scores.append(float((q * k).sum()))
        close(q.norm(), query.norm())
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@DTYPES
@pytest.mark.parametrize(("heads", "index_heads"), [(4, 8), (20, 17)])
def test_queries_are_rotated_in_place_and_quantised(draw, moe, dtype, heads, index_heads):
    """Scores by quantised queries and folded weights; heads that fill no whole group."""
    tokens, key, dim, rope = 5, 48, 32, 16
    wide = draw(tokens, heads * key + index_heads * dim, dtype=dtype)
    gates = draw(tokens, index_heads + 3, dtype=dtype)[:, 3:]
    position = torch.tensor([0, 7, 199, 3, 0], dtype=torch.int32, device=moe.device)
    cosine, sine = rotation_tables(200, rope, moe.device)
    found = {}
    for backend in ("torch", "triton"):
        own = wide.clone()
        codes, weights = shape_queries(
            own, gates, position, cosine, sine, heads=heads, index_dim=dim, backend=backend
        )
        found[backend] = own, codes.float(), weights
    assert torch.equal(found["triton"][0][:, heads * key :], wide[:, heads * key :])
    close(found["triton"][0], found["torch"][0], dtype)
    same_codes(found["triton"][1], found["torch"][1])
    close(found["triton"][2], found["torch"][2])


@pytest.mark.parametrize("width", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_the_best_entries_are_selected(draw, moe, width):
    """What a sort takes, ties by the lower column; whatever lies past a length."""
    lens = torch.tensor([[0, 16], [17, 33], [39, 40], [width, width]], dtype=torch.int32, device=moe.device)
    scores = draw(8, width)
    # Many ties; the kernel would order -0 below 0.
    scores[5] = scores[5].round() + 0.0
    scores[6] = scores[6].abs().neg()
    scores[7] = 0.0
    scores[4, 3], scores[4, 20] = float("inf"), float("-inf")
    beyond = torch.arange(width, device=moe.device) >= lens.view(-1, 1)
    for rubbish in (float("-inf"), 1e9):
        buffer = torch.full((8, width + 7), 3.0, device=moe.device)
        filled = scores.masked_fill(beyond, rubbish)
        buffer[:, :width] = filled
        got = select_entries(buffer[:, :width], lens, 16)
        assert got.dtype == torch.int32
        order = scores.masked_fill(beyond, float("-inf")).sort(dim=1, descending=True, stable=True).indices
        for slot, length in enumerate(lens.flatten().tolist()):
            if length > 16:
                assert got[slot].tolist() == sorted(order[slot, :16].tolist()), slot
    plain = select_entries(scores.masked_fill(beyond, float("-inf")), lens, 16, backend="torch")
    assert sorted(plain[6].tolist()) == sorted(order[6, :16].tolist())


def test_more_than_there_is_cannot_be_selected(draw, moe):
    with pytest.raises(LayoutError, match="selected"):
        select_entries(draw(2, 8), torch.ones(2, dtype=torch.int32, device=moe.device), 9, backend="torch")


@pytest.mark.parametrize(
    ("listed", "programs", "dtype"),
    [
        (True, 1, torch.float32),
        (False, 128, torch.bfloat16),
        pytest.param(True, 128, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(False, 1, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_attention_reads_the_selected_entries(draw, moe, step, dtype, listed, programs):
    """One split and several; short contexts, long ones, none; NaN wherever nobody may look."""
    staged, _, table = one = step(lens=(97, 40, 198) if listed else (97, 40, 6))
    selected = 32 if listed else 64
    places = placed(one)
    request, tokens = staged.assignment.token_request, len(places.cell)
    heads, latent, rope = 5, 32, 16
    latents = torch.full((100 * 8, latent + rope), NAN, dtype=dtype, device=moe.device)
    for row, last in ((0, 26), (2, 50)):
        entry = torch.arange(last, device=moe.device)
        cells = table[row].long()[entry // 8] * 8 + entry % 8
        latents[cells] = draw(last, latent + rope, dtype=dtype)
    query, own = draw(tokens, heads, latent + rope, dtype=dtype), draw(tokens, latent + rope, dtype=dtype)
    picked = None
    if listed:
        seen = places.visible[:, None]
        scores = draw(tokens, 56).masked_fill(torch.arange(56, device=moe.device) >= seen, float("-inf"))
        picked = scores.topk(selected, dim=1, sorted=False).indices
        assert int(places.visible.max()) > selected > int(places.visible[0])
    found = {}
    for backend in ("torch", "triton"):
        attend = AttendSelected(
            64, heads=heads, latent=latent, rope=rope, selected=selected, page=8, device=moe.device,
            backend=backend, launch=AttendLaunch(block=16, span=16, programs=programs, num_warps=4),
        )  # fmt: skip
        assert attend.splits(tokens) == (1 if programs == 1 else 2 if listed else 4)
        slot = staged.rows.token_slot
        found[backend] = attend(query, own, latents, picked, slot, places.visible, request, table)
    close(found["triton"], found["torch"], dtype)
    assert not found["triton"][-3:].any()
    assert bool(found["triton"][:-3].isfinite().all())


def test_attention_of_a_single_key_is_a_weighted_mean(draw, moe):
    """By hand: one visible entry and the token itself, two weights of one softmax."""
    ints = {"dtype": torch.int32, "device": moe.device}
    query, own, entry = draw(1, 2, 48), draw(1, 48), draw(1, 48)
    latents = torch.zeros(16, 48, device=moe.device)
    latents[8] = entry
    weight = (torch.stack([query[0] @ own[0], query[0] @ entry[0]]) * 48**-0.5).softmax(0)
    want = weight[0][:, None] * own[:, :32] + weight[1][:, None] * entry[:, :32]
    for backend in ("torch", "triton"):
        attend = AttendSelected(
            1, heads=2, latent=32, rope=16, selected=16, page=8, device=moe.device, backend=backend
        )
        zero, one = torch.zeros(1, **ints), torch.ones(1, **ints)
        got = attend(query, own, latents, None, zero, one, zero, torch.ones((1, 1), **ints))
        close(got[0], want)


def test_attention_refuses_what_it_was_not_made_for(draw, moe):
    attend = AttendSelected(
        2, heads=2, latent=32, rope=16, selected=16, page=8, device=moe.device, backend="torch"
    )
    zero = torch.zeros(3, dtype=torch.int32, device=moe.device)
    with pytest.raises(LayoutError, match="sparse attention"):
        attend(draw(3, 2, 48), draw(3, 48), draw(16, 48), None, zero, zero, zero, zero[None])


@DTYPES
def test_rows_go_to_their_experts_and_come_back(draw, moe, dtype):
    """Through both routes and back: the sum of weighted rows is what each token's experts make of it."""
    tokens, hidden, experts, local, active = 9, 40, 16, 5, 3
    logits, values = draw(tokens, experts + 4, dtype=dtype)[:, :experts], draw(tokens, hidden, dtype=dtype)
    # A tie within the chosen: the lower number wins.
    logits[4] = 0.0
    request = torch.tensor([0, 0, 0, 1, 1, 2, 2, -1, -1], dtype=torch.int32, device=moe.device)
    added, residual = draw(tokens, hidden, dtype=dtype), draw(tokens, hidden, dtype=dtype)
    joined = {}
    for backend in ("torch", "triton"):
        counts = torch.zeros(local, dtype=torch.int32, device=moe.device)
        sent = route_tokens(logits, values, request, counts, active=active, backend=backend)
        chosen = logits.float().sort(dim=1, descending=True, stable=True).indices[:, :active]
        here = (chosen < local) & (request >= 0)[:, None]
        assert torch.equal(sent.places >= 0, here)
        assert sent.places[4].tolist()[0] >= 0
        want = torch.stack([(chosen[here] == e).sum() for e in range(local)]).cumsum(0)
        assert torch.equal(sent.ends.long(), want)
        for token, j in here.nonzero().tolist():
            place = int(sent.places[token, j])
            expert = int(torch.searchsorted(sent.ends, place, right=True))
            assert expert == int(chosen[token, j])
            assert torch.equal(sent.rows[place], values[token])
        assert len(set(sent.places[here].tolist())) == int(here.sum())
        rows = sent.rows.clone()
        rows[int(sent.ends[-1]) :] = NAN
        joined[backend] = (
            *join_residual(residual, added, rows, sent.places, sent.weights, backend=backend),
            sent.weights,
        )
    for got, want in zip(joined["triton"], joined["torch"], strict=True):
        close(got, want, dtype)
    close(joined["torch"][2].sum(1), torch.ones(tokens, device=moe.device))
    padded = joined["triton"][0][-2:]
    close(padded, residual[-2:].float() + added[-2:].float(), dtype)


@DTYPES
def test_a_join_without_experts_adds_and_norms(draw, dtype):
    residual, added = draw(3, 40, dtype=dtype), draw(3, 40, dtype=dtype)
    for backend in ("torch", "triton"):
        joined, norm = join_residual(residual, added, backend=backend)
        close(joined, residual.float() + added.float(), dtype)
        close(norm.float().square().mean(1), torch.ones(3, device=norm.device), dtype)


@DTYPES
def test_gates_of_live_rows_equal_the_reference(draw, moe, dtype):
    """Rows past the last end are left out: NaN there reaches nothing before them."""
    shared, routed = draw(4, 103, dtype=dtype)[:, 3:], draw(7, 48, dtype=dtype)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32, device=moe.device)
    routed[5:] = NAN
    want = gated(shared, routed, ends, backend="torch")
    got = gated(shared, routed, ends)
    close(got[0], want[0], dtype)
    close(got[1][:5], want[1][:5], dtype)
    silu = torch.nn.functional.silu(shared[:, :50].float()) * shared[:, 50:].float()
    close(got[0], silu, dtype)
