"""The planner beside one that is written to be read: equal plans, bit for bit.

What ``VerificationManager.plan`` does in whole arrays stands here one number after the other, as maths
sections 1 to 3 say it. Measured prices, no exploration, no warm-up, pairs that are lossless.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import (
    BudgetReads,
    Limits,
    Plan,
    PlanState,
    PolicyDescriptor,
    Seen,
    StepState,
)
from adaverify_verification import (
    DRAFTER,
    CostModel,
    CostTable,
    Fingerprint,
    ManagerOptions,
    PricePolicy,
    RatioPolicy,
    VerificationManager,
)

MOST = 65535
STAY = 0.5
MOST_OTHER = 9
CONTEXTS = (64, 256)
# Saturated scores give confidences of 0 and 1, and with them ties.
SCORES = st.sampled_from([-200.0, -3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 200.0])


@dataclass
class Published:
    """Confidences float32 [R, K] of one step, and whose they are."""

    step: int
    slots: list[int]
    generations: list[int]
    confidences: np.ndarray

    def of(self, slot, generation):
        """Return a request's confidences, None where it published none."""
        for row, owner in enumerate(zip(self.slots, self.generations, strict=True)):
            if owner == (slot, generation):
                return self.confidences[row]
        return None


def survivals(confidences):
    """Return quantised survivals of one request: float32 products from left to right, rounded half up."""
    product, found = np.float32(1.0), []
    for confidence in confidences:
        product = np.float32(product * confidence)
        found.append(int(np.float32(np.float32(product * np.float32(MOST)) + np.float32(0.5))))
    return found


def budgets(certain, most, tiers, every):
    """Return what can be optimal: nothing, everything, tier ends, and all budgets that no tier holds."""
    if every or not tiers:
        return list(range(most + 1))
    return [n for n in range(most + 1) if n in (0, most) or certain + n in tiers or certain + n > tiers[-1]]


def executed(tokens, tiers):
    """Return the smallest tier that holds ``tokens``, themselves where none does."""
    return min((tier for tier in tiers if tier >= tokens), default=tokens)


def between(levels, value):
    """Return (level, weight) pairs, the lower first; the nearest level outside."""
    if value <= levels[0] or value >= levels[-1]:
        return [(levels[0] if value <= levels[0] else levels[-1], 1.0)]
    if value in levels:
        return [(value, 1.0)]
    low = max(level for level in levels if level < value)
    high = min(level for level in levels if level > value)
    share = (value - low) / (high - low)
    return [(low, 1.0 - share), (high, share)]


@dataclass
class PlainPlanner:
    """Plans one step after another; ``seconds(tokens, requests, context)`` is measured on every level."""

    seconds: object
    requests: tuple[int, ...]
    contexts: tuple[int, ...]
    tiers: tuple[int, ...]
    margin: float
    hysteresis: float
    rejected: float = 0.0
    trimming: bool = False
    tier: int | None = None

    def plan(self, state, published):
        """Return the plan of ``state`` from ``published``, the newest that it may read, or None."""
        requests, scheduled = len(state.slots), state.scheduled.tolist()
        certain, total = requests + state.other_tokens, sum(scheduled)
        most = total if state.chunk_limit is None else max(0, min(total, state.chunk_limit - requests))
        tiers = () if state.other_tokens else self.tiers
        ranked, lag = [0] * total, None
        if most:
            ranked = self.ranked(state, published)
            lag = None if published is None else state.step - published.step
        choices = budgets(certain, most, tiers, self.rejected > 0) if most else [0]
        sizes = [executed(certain + n, tiers) for n in choices]
        tokens = [sum(ranked[:n]) / MOST + state.emitting for n in choices]
        context = state.kv_tokens / requests if requests else 0.0
        prices = [self.price(size, requests, context) for size in sizes]
        if self.rejected:
            prices = [
                price + self.rejected * (n - (worth - state.emitting))
                for price, n, worth in zip(prices, choices, tokens, strict=True)
            ]
        if most:
            index, kind, reason = self.settle(tokens, prices, sizes, tiered=bool(tiers))
        else:
            index, kind, reason = 0, PlanState.IDLE, idle(state, requests, total)
        budget, size = choices[index], sizes[index]
        uniform = query_len(scheduled, budget)
        integers = (state.step, budget, total, requests, certain, size)
        integers += (-1 if uniform is None else uniform, state.kv_tokens)
        raw = b"".join(number.to_bytes(8, "little", signed=True) for number in integers)
        return Plan(
            step=state.step,
            state=kind,
            reason=reason,
            budget=budget,
            scheduled=total,
            requests=requests,
            certain_tokens=certain,
            tokens=certain + budget,
            tier=size,
            uniform_query_len=uniform,
            predicted_seconds=prices[index],
            predicted_tokens=tokens[index],
            full_seconds=prices[-1],
            full_tokens=tokens[-1],
            lag=lag,
            digest=int.from_bytes(blake2b(raw, digest_size=8).digest(), "little"),
        )

    def ranked(self, state, published):
        """Return the survivals of all scheduled drafts, largest first; an unknown request is optimistic."""
        offered = []
        rows = zip(state.slots.tolist(), state.generations.tolist(), state.scheduled.tolist(), strict=True)
        for slot, generation, drafts in rows:
            known = None if published is None else published.of(slot, generation)
            offered += [MOST] * drafts if known is None else survivals(known)[:drafts]
        return sorted(offered, reverse=True)

    def price(self, tokens, requests, context):
        """Return the seconds of a size, linear between measured levels; of one token at least."""
        total = 0.0
        for level, outer in between(self.requests, requests):
            for length, inner in between(self.contexts, context):
                total += outer * inner * self.seconds(max(1, tokens), level, length)
        return total

    def settle(self, tokens, prices, sizes, *, tiered):
        """Return the candidate, the plan's state and its reason: the best ratio, guarded."""
        full = len(tokens) - 1
        if prices[0] >= prices[full]:
            return full, PlanState.FULL, "every reachable budget costs the same"
        gains = [gain(*pair, tokens[full], prices[full]) for pair in zip(tokens, prices, strict=True)]
        best = gains.index(max(gains))
        best = full if gains[best] <= gains[full] else best
        needed = self.margin * STAY if self.trimming else self.margin
        if best == full or gains[best] <= needed:
            self.trimming, self.tier = False, sizes[full]
            if best == full:
                return full, PlanState.FULL, "verifying everything is worth most"
            short = f"trimming would gain {gains[best]:.1%}, less than the margin {needed:.1%}"
            return full, PlanState.FULL, short
        kept = self.same_tier(gains, best, sizes) if tiered else best
        self.trimming, self.tier = True, sizes[kept]
        more = "" if kept == best else f", tier kept: another gains {gains[best] - gains[kept]:.2%} more"
        return kept, PlanState.TRIMMING, f"trimming gains {gains[kept]:.1%} (margin {needed:.1%}){more}"

    def same_tier(self, gains, best, sizes):
        """Return the last candidate on the tier of the step before, where the best is hardly better."""
        if not self.trimming or sizes[best] == self.tier:
            return best
        same = [index for index, size in enumerate(sizes[:-1]) if size == self.tier]
        if same and gains[best] - gains[same[-1]] < self.hysteresis and gains[same[-1]] > 0:
            return same[-1]
        return best


def gain(tokens, seconds, all_tokens, all_seconds):
    """Return what a candidate's tokens a second gain over everything's."""
    if all_tokens <= 0:
        return all_seconds / seconds - 1.0
    return tokens * all_seconds / (all_tokens * seconds) - 1.0


def idle(state, requests, total):
    """Return why nothing can be verified."""
    if not requests:
        return "no decode requests"
    if not total:
        return "no drafts were scheduled"
    return f"a logits chunk of {state.chunk_limit} rows has no room beyond {requests} requests"


def query_len(scheduled, budget):
    """Return the query length that every request is known to have, else None."""
    if not scheduled:
        return None
    if budget == 0:
        return 1
    if len(scheduled) == 1:
        return budget + 1
    alike = len(set(scheduled)) == 1 and budget == sum(scheduled)
    return scheduled[0] + 1 if alike else None


@st.composite
def shapes(draw):
    """Sizes, prices, tiers and rules of one manager."""
    most, width = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    top = most * (width + 1)
    return {
        "most": most,
        "width": width,
        "tiers": tuple(sorted(draw(st.sets(st.integers(1, top), max_size=6)))),
        "fixed": draw(st.sampled_from([0.0, 0.004, 0.02])),
        "token": draw(st.sampled_from([0.0005, 0.002, 0.01])),
        "rejected": draw(st.sampled_from([0.0, 0.0, 0.0003])),
        "margin": draw(st.sampled_from([0.0, 0.02])),
        "hysteresis": draw(st.sampled_from([0.0, 0.05, 0.5])),
        "policy": draw(st.sampled_from([RatioPolicy, PricePolicy])),
        "deterministic": draw(st.booleans()),
    }


@st.composite
def steps(draw, most, width):
    """One step: who decodes, what is scheduled, and what is published of whom."""
    slots = draw(st.permutations(range(most)))[: draw(st.sampled_from([most, most, most, most // 2, 0]))]
    count = len(slots)
    full = draw(st.booleans())
    scheduled = (
        [width] * count if full else draw(st.lists(st.integers(0, width), min_size=count, max_size=count))
    )
    other = draw(st.sampled_from([0, 0, 0, 1, MOST_OTHER]))
    return {
        "slots": slots,
        "renewed": draw(st.sets(st.sampled_from(range(most)))) if draw(st.booleans()) else set(),
        "scheduled": scheduled,
        "other": other,
        "emitting": draw(st.integers(0, count + other)),
        "kv": draw(st.integers(0, 400 * count)),
        "chunk": draw(st.sampled_from([None, None, None, None, count + 1, most + 2 * width, 1])),
        "sampled": draw(st.booleans()) and count > 0,
        "published": draw(st.sampled_from(["all", "all", "some", "nothing"])),
        "scores": draw(st.lists(SCORES, min_size=count * width, max_size=count * width)),
    }


def seconds_of(shape):
    """What a step takes: a little more with requests and context, never falling in tokens."""

    def seconds(tokens, requests, context):
        return (
            0.01
            + shape["fixed"] * -(-tokens // 4)
            + shape["token"] * tokens
            + 1e-5 * requests
            + 1e-6 * context
        )

    return seconds


def manager_of(shape):
    """The manager of ``shape``, at measured prices, without exploration and warm-up."""
    most, width, seconds = shape["most"], shape["width"], seconds_of(shape)
    tokens = range(1, most * (width + 1) + MOST_OTHER + 1)
    points = [(n, r, c, seconds(n, r, c)) for r in sorted({1, most}) for c in CONTEXTS for n in tokens]
    table = CostTable.from_points(
        Fingerprint.from_mapping({"plain": 1}), points, rejected_seconds=shape["rejected"]
    )
    return VerificationManager(
        Limits(most, width, 4096, 16),
        "cpu",
        signal=DRAFTER,
        policy=PolicyDescriptor("plain", BudgetReads.HISTORY, shape["policy"]),
        cost=CostModel(table, online=False),
        tiers=shape["tiers"],
        options=ManagerOptions(
            margin=shape["margin"],
            hysteresis=shape["hysteresis"],
            warmup_steps=0,
            explore_share=0.0,
            online=False,
        ),
        drafter_seen=Seen.PREFIX,
        drafter_deterministic=shape["deterministic"],
    )


def publish(manager, step, given_, state):
    """Publish all of a step's requests, or some in another order; return it for the plain planner."""
    count, width = len(given_["slots"]), manager.limits.draft_tokens
    rows = np.arange(count) if given_["published"] == "all" else np.arange(count)[::-2].copy()
    scores = torch.tensor(given_["scores"], dtype=torch.float32).reshape(count, width)[torch.from_numpy(rows)]
    slots, generations = state.slots[rows], state.generations[rows]
    manager.publish(step, slots, generations, scores)
    return Published(step, slots.tolist(), generations.tolist(), torch.sigmoid(scores).numpy())


@given(shapes(), st.data())
@settings(max_examples=100, deadline=None)
def test_plans_are_those_of_the_plain_planner(shape, data):
    """Any batch, any prices: every field of every plan of a run of steps, floats and words included."""
    manager, history = manager_of(shape), []
    assert manager.cost.priced
    plain = PlainPlanner(
        seconds_of(shape),
        tuple(sorted({1, shape["most"]})),
        CONTEXTS,
        shape["tiers"],
        shape["margin"],
        shape["hysteresis"],
        shape["rejected"],
    )
    generations = np.zeros(shape["most"], dtype=np.int64)
    for step in range(data.draw(st.integers(1, 8))):
        # Batches that come again let a tier be kept.
        if step == 0 or data.draw(st.booleans()):
            given_ = data.draw(steps(shape["most"], shape["width"]))
        else:
            size = len(given_["scores"])
            given_ = {**given_, "scores": data.draw(st.lists(SCORES, min_size=size, max_size=size))}
        generations[sorted(given_["renewed"])] += 1
        slots = np.array(given_["slots"], dtype=np.int64)
        state = StepState(
            step=step,
            slots=slots,
            generations=generations[slots],
            scheduled=np.array(given_["scheduled"], dtype=np.int64),
            emitting=given_["emitting"],
            other_tokens=given_["other"],
            kv_tokens=given_["kv"],
            sampled=given_["sampled"],
            chunk_limit=given_["chunk"],
        )
        if given_["published"] != "nothing":
            history.append(publish(manager, step, given_, state))
        lagged = given_["sampled"] and not shape["deterministic"]
        readable = [item for item in history if item.step <= step - lagged]
        assert manager.plan(state) == plain.plan(state, readable[-1] if readable else None)
