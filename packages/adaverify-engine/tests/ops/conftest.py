"""Random device state, batches and comparisons for the operations of a decode step.

Without a GPU the kernels run in Triton's interpreter; the choice is made before any kernel is imported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from types import SimpleNamespace

import pytest
import torch

from adaverify_engine.acceptance import target_law

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POISON = -77777
# Weights differ by some float32 roundings of exponents near 30 (x / t in the host path, (x - best) / t in the
# kernel): 30 x 2^-24, twice, and one more for the sum.
CDF_TOLERANCE = 5e-6


@dataclass
class State:
    """Device state by request slot and one step's rows, as the engine keeps them."""

    history: torch.Tensor
    length: torch.Tensor
    limit: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    noise: torch.Tensor
    drafts: torch.Tensor
    scores: torch.Tensor
    scheduled: torch.Tensor
    hits: torch.Tensor
    trials: torch.Tensor
    row_slot: torch.Tensor
    admitted: torch.Tensor
    query_start_loc: torch.Tensor
    token_request: torch.Tensor
    token_offset: torch.Tensor
    logits: torch.Tensor
    out_token: torch.Tensor
    out_gap: torch.Tensor
    out_finite: torch.Tensor
    out_accepted: torch.Tensor
    out_tokens: torch.Tensor
    out_gaps: torch.Tensor

    def clone(self) -> State:
        """Return a copy at other addresses."""
        return State(*(getattr(self, field.name).clone() for field in fields(self)))

    def copy_(self, other: State) -> None:
        """Take the values of ``other``."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(other, field.name))

    def poison(self) -> None:
        """Overwrite every output."""
        for name in ("out_token", "out_gap", "out_finite", "out_accepted", "out_tokens", "out_gaps"):
            getattr(self, name).fill_(POISON)

    def pick(self, pick) -> None:
        """Call ``pick`` on this state."""
        pick(
            self.logits,
            self.token_request,
            self.token_offset,
            self.row_slot,
            self.length,
            self.temperature,
            self.top_p,
            self.noise,
            self.out_token,
            self.out_gap,
            self.out_finite,
        )

    def advance(self, advance, backend) -> None:
        """Call ``advance`` on this state."""
        advance(
            self.out_token,
            self.out_gap,
            self.admitted,
            self.query_start_loc,
            self.row_slot,
            self.drafts,
            self.scheduled,
            self.limit,
            self.history,
            self.length,
            self.hits,
            self.trials,
            self.out_accepted,
            self.out_tokens,
            self.out_gaps,
            backend=backend,
        )

    def lookup(self, lookup, **options) -> None:
        """Call ``lookup`` on this state."""
        lookup(
            self.history,
            self.length,
            self.limit,
            self.row_slot,
            self.hits,
            self.trials,
            self.drafts,
            self.scores,
            self.scheduled,
            **options,
        )


def make_state(
    seed: int,
    *,
    slots: int = 5,
    rows: int = 4,
    drafts: int = 3,
    tokens: int | None = None,
    longest: int = 40,
    vocabulary: int = 100,
    alphabet: int = 4,
    sampled: float = 0.5,
    nucleus: float = 0.5,
) -> State:
    """Draw a state: histories of few words, proposals, budgets, padding rows and padding tokens."""
    random = torch.Generator().manual_seed(seed)

    def whole(low, high, *shape):
        return torch.randint(low, high, shape, generator=random)

    def real(*shape, dtype=torch.float32):
        return torch.rand(shape, generator=random, dtype=dtype)

    columns = longest + drafts + 1
    limit = whole(min(2, longest), longest + 1, slots)
    # At the limit, one before it, and anywhere.
    length = torch.minimum(whole(1, longest + 1, slots), limit)
    room = (limit - length - 1).clamp(min=0, max=drafts)
    row_slot = torch.full((rows,), -1)
    used = int(whole(0, min(slots, rows) + 1, 1)) if seed % 4 else min(slots, rows)
    places = torch.randperm(rows, generator=random)[:used]
    row_slot[places] = torch.randperm(slots, generator=random)[:used]
    there = row_slot >= 0
    owner = row_slot.clamp(min=0)
    admitted = torch.where(there, (real(rows) * (room[owner] + 1)).long(), 0)
    sizes = torch.where(there, admitted + 1, 0)
    start = torch.cat((torch.zeros(1, dtype=torch.long), sizes.cumsum(0)))
    total = int(start[-1])
    padded = total + int(whole(0, 3, 1)) if tokens is None else tokens
    request = torch.full((padded,), -1)
    offset = torch.full((padded,), -1)
    request[:total] = torch.repeat_interleave(torch.arange(rows), sizes)
    offset[:total] = torch.arange(total) - start[request[:total]]
    history = whole(0, alphabet, slots, columns)
    proposal = whole(0, alphabet, slots, drafts)
    scheduled = room
    proposal[torch.arange(drafts) >= scheduled[:, None]] = -1
    # Most rows want a word of the alphabet, so that drafts are accepted to every depth.
    logits = torch.randn(padded, vocabulary, generator=random) * 3
    wanted = owner[request.clamp(min=0)]
    if drafts:
        guess = proposal[wanted, offset.clamp(min=0, max=drafts - 1)].clamp(min=0)
        agrees = real(padded) < 0.75
        logits[torch.arange(padded), guess] += torch.where(agrees, 20.0, 0.0)
    hot = real(slots) < sampled
    trials = real(slots) * 6
    ints = {"dtype": torch.int32, "device": DEVICE}
    reals = {"dtype": torch.float32, "device": DEVICE}
    return State(
        history=history.to(**ints),
        length=length.to(**ints),
        limit=limit.to(**ints),
        temperature=torch.where(hot, 0.3 + real(slots), 0.0).to(**reals),
        top_p=torch.where(real(slots) < nucleus, 0.3 + 0.69 * real(slots), 1.0).to(**reals),
        noise=real(slots, columns, 2, dtype=torch.float64).to(DEVICE),
        drafts=proposal.to(**ints),
        scores=torch.zeros(slots, drafts, **reals),
        scheduled=scheduled.to(**ints),
        hits=(trials * real(slots)).to(**reals),
        trials=trials.to(**reals),
        row_slot=row_slot.to(**ints),
        admitted=admitted.to(**ints),
        query_start_loc=start.to(**ints),
        token_request=request.to(**ints),
        token_offset=offset.to(**ints),
        logits=logits.to(**reals),
        out_token=torch.full((padded,), POISON, **ints),
        out_gap=torch.full((padded,), float(POISON), **reals),
        out_finite=torch.full((1,), POISON, **ints),
        out_accepted=torch.full((rows,), POISON, **ints),
        out_tokens=torch.full((rows, drafts + 1), POISON, **ints),
        out_gaps=torch.full((rows, drafts + 1), float(POISON), **reals),
    )


def rounding_explains(state: State, t: int, one: int, other: int) -> bool:
    """Return whether two draws of token ``t`` differ by a coin or a nucleus on a boundary."""
    slot = int(state.row_slot[int(state.token_request[t])])
    heat, nucleus = state.temperature[slot : slot + 1], state.top_p[slot : slot + 1]
    whole = target_law(state.logits[t : t + 1], heat, torch.ones_like(nucleus))[0].double()
    order = whole.sort(descending=True).values.cumsum(0)
    if float((order - float(nucleus)).abs().min()) < CDF_TOLERANCE and float(nucleus) < 1:
        return True
    law = target_law(state.logits[t : t + 1], heat, nucleus)[0].double()
    cumulated = law.cumsum(0)
    coin = float(state.noise[slot, int(state.length[slot]) + int(state.token_offset[t]), 1])
    low, high = sorted((one, other))
    return bool((cumulated[low:high] - coin).abs().max() < CDF_TOLERANCE)


def assert_same_picks(kernel: State, reference: State) -> int:
    """Compare picks; return how many draws differ, each of them explained by rounding."""
    assert torch.equal(kernel.out_finite, reference.out_finite)
    torch.testing.assert_close(kernel.out_gap, reference.out_gap, rtol=0, atol=0, equal_nan=True)
    differ = torch.nonzero(kernel.out_token != reference.out_token).flatten().tolist()
    for t in differ:
        pair = int(kernel.out_token[t]), int(reference.out_token[t])
        assert rounding_explains(reference, t, *pair), (t, pair)
    return len(differ)


# hits and trials: one multiply-add, fused or not. Scores: four logarithms, each within 2^-21 of 6.
FLOATS = {"hits": 1e-5, "trials": 1e-5, "scores": 3e-5}


def assert_same_state(kernel: State, reference: State) -> None:
    """Compare everything but the picks: integers exactly, floats by the table."""
    for field in fields(State):
        if field.name in ("logits", "noise", "out_token", "out_gap", "out_finite"):
            continue
        one, other = getattr(kernel, field.name), getattr(reference, field.name)
        tolerance = FLOATS.get(field.name, 0.0)
        torch.testing.assert_close(
            one, other, rtol=0, atol=tolerance, equal_nan=True, msg=lambda text, n=field.name: f"{n}: {text}"
        )


@pytest.fixture(scope="session")
def step_kit() -> SimpleNamespace:
    """The helpers of this file."""
    return SimpleNamespace(
        device=DEVICE,
        poison=POISON,
        State=State,
        make=make_state,
        same_picks=assert_same_picks,
        same_state=assert_same_state,
        explains=rounding_explains,
    )
