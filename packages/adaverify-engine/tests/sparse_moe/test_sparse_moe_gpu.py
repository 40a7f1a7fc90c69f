"""On the card at the default sizes: every kernel's values, the step against torch, and captured replays."""

from __future__ import annotations

import dataclasses
import warnings
from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import CapabilityError, DecodeBatch
from adaverify_engine.sparse_moe.experts import grouped_product, grouped_product_reference
from adaverify_engine.sparse_moe.index_logits import index_logits_reference
from adaverify_engine.sparse_moe.ops.attend_selected.launch import AttendSelected
from adaverify_engine.sparse_moe.ops.gated.launch import gated
from adaverify_engine.sparse_moe.ops.join_residual.launch import join_residual
from adaverify_engine.sparse_moe.ops.rotation import rotation_tables
from adaverify_engine.sparse_moe.ops.route_tokens.launch import route_tokens
from adaverify_engine.sparse_moe.ops.select_entries.launch import select_entries
from adaverify_engine.sparse_moe.ops.shape_queries.launch import shape_queries
from adaverify_engine.sparse_moe.ops.store_entries.launch import store_entries
from adaverify_metadata import relative_errors, unpack_pages
from adaverify_runtime import PluginSettings, load_plugins
from adaverify_verification import Assignment

pytestmark = [
    pytest.mark.sm90,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(600),
]
PAGE, K = 64, 7
# bfloat16 keeps 8 bits; sums of hundreds of products round differently in another order.
ROUNDING = 2e-2


def close(left, right, bound=ROUNDING):
    torch.testing.assert_close(left.float(), right.float(), rtol=bound, atol=bound)


@pytest.fixture(scope="module")
def here():
    """What the strategies of the installed plugins may count on."""
    from adaverify_capability import probe

    # What a kernel library warns of while it is imported is no fault of ours.
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        return probe("cuda", [entry.descriptor for entry in load_plugins(PluginSettings()).probes()])


@pytest.fixture(scope="module")
def strategies(here):
    """Ragged strategies that offer an indexer's scores, by name."""
    entries = [entry.descriptor for entry in load_plugins(PluginSettings()).decode_strategies()]
    found = {one.name: one for one in entries if one.logits is not None and not one.requirements.unmet(here)}
    if not {"flatten", "paired"} <= set(found):
        pytest.skip("the strategies of the plugin for this card are not installed")
    return found


@pytest.fixture(scope="module")
def logits(strategies):
    """Scores at the default sizes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            return strategies["flatten"].logits(64, 128, PAGE, torch.device("cuda"))
    except CapabilityError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def three_layers(moe, logits):
    """Three layers of the default sizes, 16 requests of up to 8192 tokens, on the kernel library's scores."""
    sizes = dataclasses.replace(moe.Sizes(), layers=3)
    limits = moe.limits(requests=16, longest=8192 - K, page=PAGE)
    model = moe.Model(sizes, limits, "cuda", logits=logits)
    model.open(4096)
    return model


class Live:
    """A step whose lengths are rewritten on the device: static tensors, a strategy's rows, one decode."""

    def __init__(self, model, strategy, capability, requests, tokens):
        ints = {"dtype": torch.int32, "device": "cuda"}
        self.model, self.requests, self.tokens = model, requests, tokens
        self.kv_lens = torch.zeros(requests, **ints)
        self.table = model.caches.block_table[:requests].clone()
        self.bounds = Assignment(
            admitted=torch.zeros(requests, **ints),
            query_start_loc=torch.zeros(requests + 1, **ints),
            seq_lens=torch.zeros(requests, **ints),
            token_request=torch.full((tokens,), -1, **ints),
            token_offset=torch.full((tokens,), -1, **ints),
        )
        self.builder = strategy.allocate(model.limits, torch.device("cuda"), capability)
        self.batch = DecodeBatch(
            self.bounds.query_start_loc, self.bounds.seq_lens, self.table, requests, tokens, tokens, K + 1
        )

    def load(self, query, lens):
        """Rewrite the step on the device; query lengths 0 are padding requests."""
        owner = [request for request, count in enumerate(query) for _ in range(count)]
        offset = [place for count in query for place in range(count)]
        padding = [-1] * (self.tokens - len(owner))
        bounds = self.bounds
        bounds.token_request.copy_(torch.tensor(owner + padding))
        bounds.token_offset.copy_(torch.tensor(offset + padding))
        bounds.query_start_loc.copy_(torch.tensor([0, *query]).cumsum(0))
        bounds.seq_lens.copy_(torch.tensor([a + b if b else 0 for a, b in zip(lens, query, strict=True)]))
        self.kv_lens.copy_(torch.tensor(lens))
        return len(owner)

    def hidden(self):
        """Build the rows and run the layers; launches only."""
        staged = SimpleNamespace(assignment=self.bounds, rows=self.builder.build(self.batch))
        return self.model.hidden(staged, self.kv_lens, self.table)

    def decode(self):
        """Build the rows and decide every token; launches only."""
        staged = SimpleNamespace(assignment=self.bounds, rows=self.builder.build(self.batch))
        return self.model.decode(staged, self.kv_lens, self.table)


def captured(work):
    """Return (graph, result) of ``work``, after one run that compiles it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def agreement(left, right):
    """Return the share of tokens whose hidden states are close: a near tie in a selection moves a token."""
    off = (left.float() - right.float()).norm(dim=1) / right.float().norm(dim=1)
    return float((off < 5 * ROUNDING).float().mean())


STEPS = [
    ([8] * 16, [4096 + 5 * r for r in range(16)]),
    ([1, 8, 3, 0, 5, 2, 8, 8, 7, 1, 1, 6, 4, 8, 8, 8], [8000 - 400 * r for r in range(16)]),
    ([1] * 16, [17 * r for r in range(16)]),
    ([0] * 15 + [4], [0] * 15 + [2047]),
]


@pytest.mark.parametrize("tokens", [1, 8, 24, 64, 200])
@pytest.mark.parametrize("listed", [True, False])
def test_attention_at_the_default_sizes(moe, tokens, listed):
    """Splits from eight to one; short and long rows, NaN where nobody may look."""
    sizes, made = moe.Sizes(), torch.Generator("cuda").manual_seed(tokens)
    ints = {"dtype": torch.int32, "device": "cuda"}
    requests, width = -(-tokens // 8), 32
    table = (torch.randperm(requests * width, generator=made, device="cuda") + 1).int().view(requests, width)
    visible = torch.randint(0, 2048 if listed else 513, (tokens,), generator=made, **ints)
    visible[0] = 2048 if listed else 512
    request = (torch.arange(tokens, device="cuda") // 8).int()
    if tokens > 8:
        request[-3:] = -1
    longest = torch.zeros(requests, **ints).scatter_reduce(
        0, request.clamp(min=0).long(), visible, "amax", include_self=True
    )
    latents = torch.randn(((requests * width + 1), PAGE, sizes.key), generator=made, device="cuda")
    entry = torch.arange(width * PAGE, device="cuda").view(width, PAGE)
    for row in range(requests):
        latents[table[row].long()] = latents[table[row].long()].masked_fill(
            (entry >= longest[row])[..., None], float("nan")
        )
    latents = latents.to(torch.bfloat16).flatten(0, 1)
    query = torch.randn(tokens, sizes.heads, sizes.key, generator=made, device="cuda").to(torch.bfloat16)
    own = torch.randn(tokens, sizes.key, generator=made, device="cuda").to(torch.bfloat16)
    picked = None
    if listed:
        scores = torch.randn(tokens, width * PAGE, generator=made, device="cuda")
        scores.masked_fill_(torch.arange(width * PAGE, device="cuda") >= visible[:, None], float("-inf"))
        picked = scores.topk(sizes.selected, dim=1, sorted=False).indices
    slot = torch.arange(tokens, **ints)
    found = []
    for backend in ("triton", "torch"):
        attend = AttendSelected(
            256, heads=sizes.heads, latent=sizes.latent, rope=sizes.rope, selected=sizes.selected, page=PAGE,
            device="cuda", backend=backend,
        )  # fmt: skip
        found.append(attend(query, own, latents, picked, slot, visible, request, table))
    close(found[0], found[1])
    assert not found[0][request < 0].any()


@pytest.mark.parametrize("width", [768, 2048, 8192, 16384, 20000])
def test_selection_at_the_default_sizes(width):
    """Every slot's 512 best as a sort finds them, at lengths around the limit and full; strided scores."""
    made, lens = torch.Generator("cuda").manual_seed(width), [0, 1, 511, 512, 513, 700, width - 1, width] * 9
    buffer = torch.randn(len(lens), width + 256, generator=made, device="cuda")
    buffer[7::8] = buffer[7::8].mul(4).round() + 0.0
    row_lens = torch.tensor(lens, dtype=torch.int32, device="cuda").view(-1, 2)
    beyond = torch.arange(width, device="cuda") >= row_lens.view(-1, 1)
    scores = buffer[:, :width]
    scores.masked_fill_(beyond, float("-inf"))
    got = select_entries(scores, row_lens, 512)
    listed = row_lens.flatten() > 512
    if width > 16384:
        assert torch.equal(scores.gather(1, got).sort(1).values, scores.topk(512).values.flip(1))
        return
    want = scores.sort(dim=1, descending=True, stable=True).indices[:, :512].sort(1).values
    assert torch.equal(got[listed].long(), want[listed])


def test_entries_and_queries_at_the_default_sizes(moe):
    """Codes by the hardware's conversion equal torch's but for neighbours on a boundary."""
    sizes, made = moe.Sizes(), torch.Generator("cuda").manual_seed(1)
    tokens = 40
    position = torch.randint(0, 8000, (tokens,), generator=made, device="cuda", dtype=torch.int32)
    cell = torch.randperm(640, generator=made, device="cuda")[:tokens] + 64
    cell[::3] = -1
    places = SimpleNamespace(position=position, cell=cell)
    cosine, sine = rotation_tables(8192, sizes.rope, torch.device("cuda"))
    mixed = torch.randn(tokens, sizes.mixed, generator=made, device="cuda").to(torch.bfloat16)
    wide = torch.randn(tokens, sizes.wide, generator=made, device="cuda").to(torch.bfloat16)
    stored, shaped = [], []
    for backend in ("triton", "torch"):
        latents = torch.zeros(11 * PAGE, sizes.key, dtype=torch.bfloat16, device="cuda")
        index = torch.zeros(11, PAGE, 1, sizes.index_dim + 4, dtype=torch.uint8, device="cuda")
        base, own = store_entries(
            mixed, places, cosine, sine, latents, index,
            rank=sizes.query_rank, latent=sizes.latent, index_dim=sizes.index_dim, backend=backend,
        )  # fmt: skip
        codes, scales = unpack_pages(index, torch.arange(11, device="cuda"))
        stored.append((base, own, latents, codes, scales))
        turned = wide.clone()
        gates = mixed[:, -sizes.index_heads :]
        queries, weights = shape_queries(
            turned, gates, position, cosine, sine, heads=sizes.heads, index_dim=sizes.index_dim,
            backend=backend,
        )  # fmt: skip
        shaped.append((turned, weights, queries.float()))
    for got, want in zip(stored[0][:3], stored[1][:3], strict=True):
        close(got, want)
    close(stored[0][4], stored[1][4], 1e-5)
    close(shaped[0][0], shaped[1][0])
    close(shaped[0][1], shaped[1][1], 1e-5)
    for got, want in ((stored[0][3], stored[1][3]), (shaped[0][2], shaped[1][2])):
        assert float((got == want).float().mean()) > 0.999
        assert bool(((got - want).abs() <= 0.13 * want.abs() + 2**-9).all())


@pytest.mark.parametrize("tokens", [1, 8, 64, 512])
def test_experts_at_the_default_sizes(moe, tokens):
    """Routing, dispatch, both grouped products, gates and join, against the loop over groups."""
    sizes, made = moe.Sizes(), torch.Generator("cuda").manual_seed(tokens)

    def draw(*shape):
        return torch.randn(shape, generator=made, device="cuda").to(torch.bfloat16)

    up, down = draw(64, 1024, 4096) * 4096**-0.5, draw(64, 4096, 512) * 512**-0.5
    values, gate, residual = draw(tokens, 4096), draw(tokens, 256 + 4096), draw(tokens, 4096)
    request = torch.zeros(tokens, dtype=torch.int32, device="cuda")
    if tokens > 1:
        request[-1] = -1
    found = []
    for backend, product in (("triton", grouped_product), ("torch", grouped_product_reference)):
        counts = torch.zeros(64, dtype=torch.int32, device="cuda")
        sent = route_tokens(
            gate[:, :256], values, request, counts, active=sizes.active_experts, backend=backend
        )
        shared, routed = gated(gate[:, 256:], product(sent.rows, up, sent.ends), sent.ends, backend=backend)
        rows = product(routed, down, sent.ends)
        nothing = torch.zeros_like(residual)
        parts = join_residual(residual, nothing, rows, sent.places, sent.weights, backend=backend)
        found.append((sent.ends, sent.weights, shared, *parts))
    assert torch.equal(found[0][0], found[1][0])
    for got, want in zip(found[0][1:], found[1][1:], strict=True):
        close(got, want)


@pytest.mark.parametrize("name", ["flatten", "paired"])
def test_the_plugins_scores_equal_the_reference(strategies, here, three_layers, logits, name):
    """By slot, masks included, through rows of one and of two query tokens."""
    live = Live(three_layers, strategies[name], here, 16, 128)
    made = torch.Generator("cuda").manual_seed(2)
    query = torch.randn(128, 64, 128, generator=made, device="cuda").to(torch.float8_e4m3fn)
    weights = torch.randn(128, 64, generator=made, device="cuda")
    for step in STEPS:
        live.load(*step)
        rows = live.builder.build(live.batch)
        index = three_layers.caches.index[1]
        got = logits(query, weights, index, rows, 2048)[rows.token_slot.long()]
        want = index_logits_reference(query, weights, index, rows, 2048)[rows.token_slot.long()]
        real = live.bounds.token_request >= 0
        got, want = got[real], want[real]
        assert torch.equal(got == float("-inf"), want == float("-inf"))
        # Signed weights cancel, so the whole is judged, not each row.
        assert float(relative_errors(got, want)[-1]) < 1e-3


def test_a_step_in_float32_equals_torch(moe):
    """Tiny sizes, every kernel compiled in float32 against the same weights in plain torch.

    One query code on a rounding boundary may change which 16 entries a token selects, hence not all.
    """
    limits, found = moe.limits(), []
    for backend in ("triton", "torch"):
        model = moe.Model(moe.Sizes.tiny(), limits, "cuda", dtype=torch.float32, backend=backend)
        model.open(100)
        found.append(moe.run(model, [8, 3, 1], [5, 97, 150], padding=4))
    off = (found[0] - found[1]).norm(dim=1)[:12] / found[1].norm(dim=1)[:12]
    assert int((off < 1e-3).sum()) >= 10


def test_a_step_in_bfloat16_agrees_with_torch(moe, three_layers):
    """The default sizes: hidden states of nearly all tokens, the same weights and caches."""
    query, lens = STEPS[1]
    found = []
    for backend in ("triton", "torch"):
        model = moe.Model(
            three_layers.sizes,
            three_layers.limits,
            "cuda",
            backend=backend,
        )
        model.open(4096)
        found.append(moe.run(model, query, lens, padding=2)[: sum(query)].clone())
        del model
    assert bool(found[0].isfinite().all())
    assert agreement(found[0], found[1]) > 0.9


@pytest.mark.parametrize("name", ["flatten", "paired"])
def test_one_captured_step_replays_with_other_lengths(strategies, here, three_layers, name):
    """A replay equals the same step run eagerly, whatever the lengths were at capture."""
    live = Live(three_layers, strategies[name], here, 16, 128)
    live.load(*STEPS[0])
    graph, hidden = captured(live.hidden)
    for step in [*STEPS, STEPS[0]]:
        real = live.load(*step)
        three_layers.open(4096)
        want = live.hidden()[:real].clone()
        three_layers.open(4096)
        hidden.fill_(float("nan"))
        graph.replay()
        assert bool(hidden[:real].isfinite().all())
        assert agreement(hidden[:real], want) == 1.0


def test_paired_rows_give_what_flattened_ones_give(strategies, here, three_layers):
    for step in STEPS:
        found = []
        for name in ("flatten", "paired"):
            live = Live(three_layers, strategies[name], here, 16, 128)
            real = live.load(*step)
            three_layers.open(4096)
            found.append(live.hidden()[:real].clone())
        assert agreement(found[1], found[0]) > 0.97


def test_decode_never_waits_and_gives_a_token_for_each(strategies, here, three_layers, refusing_waits):
    """Torch raises on any wait; the tokens are those of the hidden states."""
    live = Live(three_layers, strategies["flatten"], here, 16, 128)
    live.load(*STEPS[0])
    live.decode()
    torch.cuda.synchronize()
    with refusing_waits():
        tokens = live.decode()
    assert tokens.dtype == torch.int32
    assert tokens.shape == (128,)
    assert bool(((tokens >= 0) & (tokens < three_layers.sizes.vocabulary)).all())
    assert len(set(tokens.tolist())) > 100


def test_the_whole_decoder_fits_and_replays(moe, strategies, here, logits):
    """All 48 layers at the default sizes, beside the caches of two requests."""
    if torch.cuda.mem_get_info()[0] < 70e9:
        pytest.skip("needs 70 GB of free device memory")
    limits = moe.limits(requests=2, longest=8192 - K, page=PAGE)
    model = moe.Model(moe.Sizes(), limits, "cuda", logits=logits)
    model.open(4096)
    live = Live(model, strategies["flatten"], here, 1, 8)
    live.load([8], [4096])
    graph, tokens = captured(live.decode)
    tokens.fill_(-1)
    graph.replay()
    assert bool(((tokens >= 0) & (tokens < model.sizes.vocabulary)).all())
    assert len(set(tokens.tolist())) > 4
