"""Drafting at every position of a known text is what an engine drafts where its steps begin."""

import numpy as np
import pytest
import torch

from adaverify_contracts import EngineError
from adaverify_engine import Sampling
from adaverify_engine.anchors import AT_ONCE, AnchorDrafter

K = 5


def everywhere(tiny, model, drafter=None):
    block = (drafter or tiny.Block)(tiny.options(draft_tokens=K).limits, torch.device("cpu"))
    return AnchorDrafter(block, model, torch.float32, torch.device("cpu"), K)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_says_what_the_engine_says_at_every_step(make_engine, tiny, temperature):
    """Steps of a run that verifies everything: same scores, same accepted drafts, and so the same steps."""
    model, prompt, count = tiny.Decoder(), tiny.prompts(3)[2], 60
    engine = make_engine("fixed", model=model, drafter=tiny.Block, max_requests=1, draft_tokens=K)
    records = []
    engine.verifier.add_observer("test", records.append)
    sampling = Sampling(temperature=temperature, seed=4, max_tokens=count, trim_invariant=True)
    request = engine.add(prompt, sampling)
    text = [*prompt, *engine.run()[request].tokens]
    engine.verifier.drain()
    first, last = len(prompt), len(text) - 1 - K
    found = everywhere(tiny, model).draft(text, first, last, temperature)
    assert found.scores.shape == found.tokens.shape == (last - first + 1, K)
    at, steps = 0, 0
    for record in records:
        if record.scheduled < K:
            continue  # the prompt's own step, or no room for K drafts
        if at > last - first:
            break
        np.testing.assert_allclose(found.scores[at], record.rows.scores[0], atol=2e-4)
        assert found.accepted[at] == record.accepted
        at, steps = at + record.accepted + 1, steps + 1
    assert steps > 8
    assert 0 < found.accepted.mean() < K


def test_accepted_are_the_leading_drafts_that_the_text_has(tiny):
    """Counted by hand from the drafts, more anchors than one call takes."""
    model = tiny.Decoder()
    prompt = tiny.prompts(3)[2]
    text = [*prompt, *tiny.greedy(model, prompt, AT_ONCE + 10)]
    found = everywhere(tiny, model).draft(text, 1, len(text) - 1 - K)
    assert len(found.tokens) > AT_ONCE
    assert 0 < found.accepted.mean() < K
    for row, at in enumerate(range(1, len(text) - K)):
        count = 0
        while count < K and found.tokens[row, count] == text[at + 1 + count]:
            count += 1
        assert found.accepted[row] == count


def test_an_anchor_sees_nothing_of_what_follows(tiny):
    """Another continuation leaves drafts and scores as they were, and moves what is accepted."""
    model = tiny.Decoder()
    prompt = tiny.prompts(3)[2]
    text = [*prompt, *tiny.greedy(model, prompt, 30)]
    one = everywhere(tiny, model).draft(text, 1, len(text) - 1 - K)
    at = 1 + int(one.accepted.argmax())
    other = [*text[: at + 1], *[(token + 1) % tiny.vocabulary for token in text[at + 1 :]]]
    two = everywhere(tiny, model).draft(other, 1, at)
    np.testing.assert_array_equal(one.tokens[:at], two.tokens)
    np.testing.assert_allclose(one.scores[:at], two.scores, atol=1e-5)
    assert one.accepted[at - 1] > two.accepted[at - 1] == 0


@pytest.mark.parametrize(("first", "last"), [(0, 4), (5, 4), (1, 20 - K)])
def test_anchors_that_cannot_be_judged_are_refused(tiny, first, last):
    with pytest.raises(EngineError, match="held against the text"):
        everywhere(tiny, tiny.Decoder()).draft(list(range(20)), first, last)


def test_a_drafter_for_another_target_is_refused(tiny):
    class Odd(tiny.Block):
        taps = (2, 1)

    with pytest.raises(EngineError, match="layers"):
        everywhere(tiny, tiny.Decoder(), Odd)
