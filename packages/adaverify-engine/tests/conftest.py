"""A tiny decoder with random weights and an engine around the real verifier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint
from itertools import pairwise
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from adaverify_contracts import (
    DraftBatch,
    DrafterDescriptor,
    GraphBackendDescriptor,
    LoadedModel,
    ModelGeometry,
    Requirements,
    Seen,
    hookimpl,
)
from adaverify_engine import Engine, EngineOptions
from adaverify_engine.drafters import LookupDrafter, NgramDrafter
from adaverify_graphs.backends import EagerBackend
from adaverify_runtime import PlannerSettings, PluginSettings, Settings, assemble, load_plugins
from adaverify_testing import inline_entry_points
from adaverify_verification import CostTable, Fingerprint, contention

VOCABULARY = 50
BUILT_INS = ("capability", "engine", "graphs", "reference", "verification")


@pytest.fixture(autouse=True)
def nobody_waits(request, monkeypatch):
    """Tests run beside others; what they wait for a processor is no part of a made-up machine's times."""
    if request.module.__name__.rpartition(".")[2] != "test_contention":
        monkeypatch.setattr(contention, "thread_waits", dict)


class RerunBackend:
    """A plugin with a backend that "replays" a step by running it again: whole steps without a card."""

    @hookimpl
    def adaverify_register_graph_backends(self):
        return (
            GraphBackendDescriptor("rerun", Requirements(), captures=True, priority=5, factory=EagerBackend),
        )


class TinyDecoder:
    """2 layers, hidden 32, 2 query heads over 1 KV head, 50 tokens; greedy text falls into cycles."""

    def __init__(self, *, stop_tokens: tuple[int, ...] = (), seed: int = 0, heads: int = 2) -> None:
        random = torch.Generator().manual_seed(seed)

        def weight(*shape: int, scale: float) -> torch.Tensor:
            return torch.randn(*shape, generator=random) * scale

        self.geometry = ModelGeometry(
            "tiny", 2, 32, heads, 1, 16, VOCABULARY, max_model_len=256, stop_tokens=stop_tokens
        )
        self.heads = heads
        self.embedding = weight(VOCABULARY, 32, scale=1.0)
        self.places = weight(512, 32, scale=0.05)
        self.mix = [weight(32, (heads + 2) * 16, scale=0.25) for _ in range(2)]
        self.out = [weight(heads * 16, 32, scale=0.25) for _ in range(2)]
        self.up = [weight(32, 64, scale=0.2) for _ in range(2)]
        self.down = [weight(64, 32, scale=0.15) for _ in range(2)]
        self.head = weight(32, VOCABULARY, scale=1.0)
        self.calls: list[int] = []

    def to(self, device):
        """Move every weight; return self."""
        for name in ("embedding", "places", "head"):
            setattr(self, name, getattr(self, name).to(device))
        for name in ("mix", "out", "up", "down"):
            setattr(self, name, [weight.to(device) for weight in getattr(self, name)])
        return self

    def forward(self, tokens, positions, attend):
        return self.forward_tapped(tokens, positions, attend, ())[0]

    def forward_tapped(self, tokens, positions, attend, taps):
        self.calls.append(len(tokens))
        tapped = []
        hidden = self.embedding[tokens] + self.places[positions]
        for layer in range(2):
            rows = torch.nn.functional.rms_norm(hidden, (32,))
            mixed = (rows @ self.mix[layer]).view(len(tokens), -1, 16)
            query, key, value = mixed.split([self.heads, 1, 1], dim=1)
            hidden = hidden + attend(layer, query, key, value).reshape(len(tokens), -1) @ self.out[layer]
            rows = torch.nn.functional.rms_norm(hidden, (32,))
            hidden = hidden + torch.relu(rows @ self.up[layer]) @ self.down[layer]
            if layer + 1 in taps:
                tapped.append(hidden)
        features = torch.cat(tapped, dim=1) if tapped else hidden[:, :0]
        return torch.nn.functional.rms_norm(hidden, (32,)), features

    def logits(self, hidden):
        return (hidden @ self.head).float()


@cache
def successors() -> torch.Tensor:
    """Return [V, V]: what followed what in the greedy text of the tiny decoder, a bigram head "trained"."""
    model, table = TinyDecoder(), torch.zeros(VOCABULARY, VOCABULARY)
    for prompt in prompts_of(6):
        text = greedy_oracle(model, prompt, 40)
        for one, two in pairwise([prompt[-1], *text]):
            table[one, two] += 1.0
    return table / table.sum(dim=1, keepdim=True).clamp(min=1.0)


class TinyBlock:
    """A drafter that reads both layers' features and looks at the KV of layer 1 (contract ``BlockDrafter``).

    Bigrams of the target's text make its drafts right often; what it reads moves every score, and now and
    then a draft. It remembers its calls: (features, tokens, positions, query, what it saw).
    """

    taps = (1, 2)

    def __init__(self, limits, device, *, seed=5) -> None:
        random = torch.Generator().manual_seed(seed)
        self.queries = max(limits.draft_tokens, 1)
        self.mix = (torch.randn(64, 32, generator=random) * 0.05).to(device)
        self.slots = (torch.randn(self.queries, 32, generator=random) * 0.5).to(device)
        self.bigrams = successors().to(device)
        self.calls: list[tuple[torch.Tensor, ...]] = []
        self.temperatures: list[list[float]] = []
        self.remembers = True

    def bind(self, target, dtype):
        self.target, self.dtype = target, dtype

    def block(self, features, tokens, positions, temperatures, attend):
        count, target = len(tokens), self.target
        rows = (features.float() @ self.mix)[:, None] + self.slots
        query = rows.reshape(count * self.queries, 2, 16).repeat(1, target.heads // 2, 1).to(self.dtype)
        seen = attend(1, query)
        if self.remembers:
            self.calls.append((features.clone(), tokens.clone(), positions.clone(), query, seen.clone()))
            self.temperatures.append(temperatures.tolist())
        read = (rows + seen.float().reshape(count, self.queries, -1)[..., :32]) @ target.head
        token, drafts, scores = tokens, [], []
        for place in range(self.queries):
            logits = 8.0 * self.bigrams[token] + 0.3 * read[:, place]
            token = logits.argmax(dim=-1)
            drafts.append(token)
            scores.append(logits.max(dim=-1).values * 0.5 - 2.0)
        return torch.stack(drafts, dim=1), torch.stack(scores, dim=1)


class TinyTokenizer:
    """One letter or two for a token, so that stop texts can span tokens."""

    names: ClassVar[list[str]] = [chr(97 + i) if i < 26 else "x" + chr(71 + i) for i in range(VOCABULARY)]

    def encode(self, text: str) -> list[int]:
        return [self.names.index(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.names[token] for token in tokens)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [token for message in messages for token in self.encode(message["content"])]


def full_logits(model: TinyDecoder, tokens: Sequence[int]) -> torch.Tensor:
    """Return logits [T, vocabulary] of one sequence by plain causal attention: the oracle of every test."""

    def attend(layer, query, key, value):
        key, value = (part.expand(-1, model.heads, -1).transpose(0, 1) for part in (key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), key, value, is_causal=True
        )
        return out.transpose(0, 1)

    ids = torch.tensor(tokens)
    return model.logits(model.forward(ids, torch.arange(len(ids)), attend))


_known: dict[tuple[object, ...], list[int]] = {}


def greedy_oracle(model: TinyDecoder, prompt: Sequence[int], count: int) -> list[int]:
    """Return ``count`` greedy tokens, the whole sequence computed anew for each.

    Computed once for equal weights and prompt: many tests ask for the same text.
    """
    weights = [model.embedding, model.places, model.head, *model.mix, *model.out, *model.up, *model.down]
    digest = hash(b"".join(weight.cpu().numpy().tobytes() for weight in weights))
    text = _known.setdefault((type(model), model.heads, digest, *prompt), [])
    while len(text) < count:
        text.append(int(full_logits(model, [*prompt, *text])[-1].argmax()))
    return text[:count]


class DrawingDrafter:
    """Draws each draft from the target's law after the one token before it, and says so.

    The score at k is a function of the token before k (``PREFIX``), or of the token drawn at k.
    """

    def __init__(self, limits, model, *, seed=0, temperature=1.0, drawn_score=False):
        self.width, self.drawn_score = limits.draft_tokens, drawn_score
        self.random = torch.Generator().manual_seed(seed)
        rows = [full_logits(model, [token])[0] for token in range(VOCABULARY)]
        self.law = torch.softmax(torch.stack(rows) / temperature, dim=1)
        self.last = {}

    def start(self, slot, prompt):
        self.last[slot] = prompt[-1]

    def propose(self, slots, room):
        tokens = torch.full((len(slots), self.width), -1)
        laws = torch.zeros(len(slots), self.width, VOCABULARY)
        scores = torch.zeros(len(slots), self.width)
        for row, slot in enumerate(slots):
            before = self.last[slot]
            for k in range(int(room[row])):
                laws[row, k] = self.law[before]
                drawn = int(torch.multinomial(self.law[before], 1, generator=self.random))
                share = self.law[before, drawn] if self.drawn_score else self.law[before].max()
                scores[row, k] = torch.logit(share.clamp(1e-4, 1 - 1e-4))
                tokens[row, k] = before = drawn
        return DraftBatch(tokens, room.copy(), scores, laws)

    def extend(self, slot, tokens):
        self.last[slot] = tokens[-1]

    def stop(self, slot):
        self.last.pop(slot)


def make_options(**changes) -> EngineOptions:
    base = {"max_requests": 4, "draft_tokens": 5, "max_model_len": 96, "page_size": 4, "prefill_chunk": 16}
    return EngineOptions(**(base | {"dtype": "float32"} | changes))


def prompts_of(count: int, seed: int = 1) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 30, (count,), generator=random).tolist()
    return [torch.randint(0, VOCABULARY, (length,), generator=random).tolist() for length in lengths]


def steep_table(slope: float = 1.0) -> CostTable:
    """Return made-up prices: a draft that survives less than 2 times in 3 does not pay.

    Trimming gains far more than the guard's widest margin (27 %), so that it happens whatever this machine's
    real step times do to the guard.
    """
    points = [
        (tokens, requests, context, 4e-4 + slope * 2e-4 * tokens)
        for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for requests in (1, 4, 16)
        for context in (16, 128)
    ]
    return CostTable.from_points(Fingerprint.from_mapping({"device": "a test"}), points)


def settings_of(**planner) -> Settings:
    """Return settings that warm up in two steps and keep the made-up prices."""
    return Settings(planner=PlannerSettings(**({"warmup_steps": 2, "online": False} | planner)))


def drawing(seen: Seen) -> DrafterDescriptor:
    """Return the descriptor of a drafter that draws, with scores that have ``seen`` what they say."""
    return DrafterDescriptor("drawing", seen, deterministic=False, factory=DrawingDrafter)


@pytest.fixture
def make_engine():
    """Return a factory of engines over the real verifier and plugins; closes what it made.

    ``draws`` is what the scores of a drafter that draws have seen; None declares a deterministic one.
    """
    made = []

    def make(
        mode="adaptive",
        *,
        model=None,
        drafter=None,
        table=None,
        settings=None,
        tokenizer=None,
        replayed=False,
        draws=None,
        plugin=None,
        **changes,
    ) -> Engine:
        options = make_options(**changes)
        points = [EntryPoint(name, f"adaverify_{name}.hooks", "adaverify") for name in BUILT_INS]
        if replayed:
            points += inline_entry_points([("rerun", RerunBackend())])
        if plugin is not None:
            points += inline_entry_points([("test", plugin)])
        plugins = load_plugins(PluginSettings(), entry_points=points)
        verifier = assemble(
            options.limits,
            device="cpu",
            mode=mode,
            settings=settings or settings_of(),
            plugins=plugins,
            drafter=plugins.drafters()[0].descriptor if draws is None else drawing(draws),
            cost_table=steep_table() if table is None else table,
        )
        made.append(verifier)
        if drafter is None:
            kind = LookupDrafter if replayed else NgramDrafter
            drafter = kind(options.limits, torch.device("cpu"))
        elif isinstance(drafter, type):
            drafter = drafter(options.limits, torch.device("cpu"))
        loaded = LoadedModel(model or TinyDecoder(), tokenizer or TinyTokenizer())
        engine = Engine(loaded, verifier, drafter, options)
        if replayed:
            report = engine.capture()
            assert report.captured and not report.failed, report
        return engine

    yield make
    for verifier in made:
        verifier.close()


def same_or_near_tie(left, right) -> bool:
    """Return whether two greedy completions agree up to a first difference at a near-tie (gap < 1e-4)."""
    for place, (one, other) in enumerate(zip(left.tokens, right.tokens, strict=False)):
        if one != other:
            return left.gaps[place] < 1e-4
    return len(left.tokens) == len(right.tokens)


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """Return the tiny decoder and its oracles."""
    return SimpleNamespace(
        Decoder=TinyDecoder,
        Drawing=DrawingDrafter,
        Tokenizer=TinyTokenizer,
        Block=TinyBlock,
        vocabulary=VOCABULARY,
        logits=full_logits,
        greedy=greedy_oracle,
        options=make_options,
        prompts=prompts_of,
        same=same_or_near_tie,
        settings=settings_of,
        steep=steep_table,
    )
