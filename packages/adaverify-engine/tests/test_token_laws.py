"""Token laws of sampled runs of the real engine against the target alone: chi-square at a stated level.

The target alone gives the law of every token behind its own prefix. A token's *place* in that law, the mass
of the tokens ordered before it and a share of its own, is uniform, and independent of all other places,
exactly if the emitted text has the target's joint law (Rosenblatt's transform). So consecutive places fill a
square evenly: 16 cells, chi-square with 15 degrees of freedom. Tokens are ordered by the drafter's law: a
wrong engine emits too many or too few of what the drafter likes.

Every request has a seed of its own and the seeds are fixed: the tests are reproducible. Had they been drawn
afresh, a right engine would fail one such test of a thousand (``LEVEL``).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaverify_contracts import Seen
from adaverify_engine import Sampling

LEVEL = 1e-3
BINS = 4
REQUESTS, TOKENS, CONCURRENCY, DRAFTS = 128, 33, 16, 3
TEMPERATURE = 1.5
MODES = ("none", "fixed", "adaptive")


def places(tiny, model, prompt, tokens, liking, share):
    """Return the place of each token in the target's law, float64 [T]; uniform if the text is the target's.

    Args:
        liking: float [V, V], the drafter's law behind each token.
        share: float64 [T] in [0, 1), which part of its own mass a token lies at.
    """
    text = [*prompt, *tokens]
    rows = tiny.logits(model, text[:-1])[len(prompt) - 1 :] / TEMPERATURE
    law = rows.double().softmax(dim=1)
    order = liking[torch.tensor(text[len(prompt) - 1 : -1])].argsort(dim=1, descending=True)
    ordered = law.gather(1, order)
    at = (order == torch.tensor(tokens)[:, None]).long().argmax(dim=1, keepdim=True)
    own = ordered.gather(1, at)
    return (ordered.cumsum(dim=1).gather(1, at) - own + share[:, None] * own)[:, 0]


def target(tiny):
    """Return a tiny decoder whose attention is weak, so that the drafter, which sees one token, is good."""
    model = tiny.Decoder()
    model.out = [0.1 * weight for weight in model.out]
    return model


def on_schedule(engine):
    """Report every step as long as it was planned: what is trimmed repeats, whatever the machine does."""
    observe = engine.verifier.observe

    def observed(outcome, plan):
        return observe(replace(outcome, seconds=plan.predicted_seconds), plan)

    engine.verifier.observe = observed


def p_value(engine, tiny, liking, **sampling):
    """Serve all requests; return the p-value of the places of consecutive tokens."""
    random = torch.Generator().manual_seed(11)
    prompts = {}
    for seed, prompt in enumerate(tiny.prompts(REQUESTS, seed=5)):
        asked = Sampling(temperature=TEMPERATURE, seed=seed, max_tokens=TOKENS, **sampling)
        prompts[engine.add(prompt[:12], asked)] = prompt[:12]
    counts = torch.zeros(BINS * BINS, dtype=torch.float64)
    on_schedule(engine)
    for request, done in engine.run().items():
        share = torch.rand(TOKENS, generator=random, dtype=torch.float64)
        found = places(tiny, target(tiny), prompts[request], list(done.tokens), liking, share)
        # The first token comes from the prefill; the others in pairs that do not overlap.
        cell = (found[1:] * BINS).long().clamp(max=BINS - 1).view(-1, 2)
        counts += torch.bincount(cell[:, 0] * BINS + cell[:, 1], minlength=BINS * BINS)
    expected = counts.sum() / len(counts)
    assert expected > 30
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2).double(), statistic / 2))


def serve(make_engine, tiny, mode, *, seen=Seen.PREFIX, drawn_score=False):
    """Return an engine and its drafter, which draws; its scores are declared to have ``seen`` what they say.

    Prices are such that about a third of the drafts pays, and nothing else moves the budget.
    """
    model = target(tiny)
    sizes = {"max_requests": CONCURRENCY, "draft_tokens": DRAFTS, "max_model_len": 64, "prefill_chunk": 64}
    drafter = tiny.Drawing(
        tiny.options(**sizes).limits, model, temperature=TEMPERATURE, drawn_score=drawn_score
    )
    settings = tiny.settings(signal="drafter", explore_share=0.0, margin=0.0)
    engine = make_engine(
        mode, model=model, drafter=drafter, draws=seen, settings=settings, table=tiny.steep(0.1), **sizes
    )
    return engine, drafter.law


@pytest.mark.parametrize("mode", MODES)
def test_sampled_text_has_the_law_of_the_target(make_engine, tiny, mode):
    """A drafter that draws, rejection sampling; nothing, everything or what pays verified."""
    engine, liking = serve(make_engine, tiny, mode)
    assert p_value(engine, tiny, liking) > LEVEL
    if mode == "adaptive":
        assert 0.1 * engine.stats.drafted < engine.stats.verified < 0.6 * engine.stats.drafted
    if mode != "none":
        assert engine.stats.accepted > 500


def test_the_same_test_fails_for_a_seeded_violation(make_engine, tiny):
    """Scores that saw the drawn token, declared not to have: what the drafter likes comes too often."""
    engine, liking = serve(make_engine, tiny, "adaptive", seen=Seen.PREFIX, drawn_score=True)
    assert p_value(engine, tiny, liking) < LEVEL / 1000
    assert engine.stats.verified < 0.6 * engine.stats.drafted


def test_honest_scores_of_the_drawn_token_are_downgraded(make_engine, tiny):
    """Declared for what they are, the same scores trim no sampled request, and the law is right."""
    engine, liking = serve(make_engine, tiny, "adaptive", seen=Seen.DRAWN_TOKEN, drawn_score=True)
    assert p_value(engine, tiny, liking) > LEVEL
    assert engine.stats.verified == engine.stats.drafted > 0
    assert engine.verifier.counters["lossless-downgrade"] > 50


def test_trim_invariant_requests_may_be_trimmed_by_any_score(make_engine, tiny):
    """Judged by equality they keep the law under the very rule that breaks rejection sampling."""
    engine, liking = serve(make_engine, tiny, "adaptive", seen=Seen.DRAWN_TOKEN, drawn_score=True)
    assert p_value(engine, tiny, liking, trim_invariant=True) > LEVEL
    assert 0 < engine.stats.verified < 0.6 * engine.stats.drafted
    assert "lossless-downgrade" not in engine.verifier.counters
