"""What a step reports of each request: scores, fate, its prompt's key, and drafts behind an end token."""

from __future__ import annotations

import numpy as np
import pytest

from adaverify_engine import Sampling
from adaverify_engine.drafters import LookupDrafter
from adaverify_engine.emission import Emission
from adaverify_engine.events import Events
from adaverify_engine.request import FinishReason, prompt_key


@pytest.mark.parametrize(
    ("finished", "tokens", "accepted", "judged"),
    [
        (None, 4, 3, 5),
        # Three drafts accepted, the second ends the text: what follows it is of no text.
        (FinishReason.STOP_TOKEN, 2, 3, 2),
        (FinishReason.STOP_TEXT, 3, 3, 3),
        # The token after the accepted drafts ends it: the refusal, or the full acceptance, counts.
        (FinishReason.STOP_TOKEN, 4, 3, 5),
        # Cut for its length: the target did accept the drafts behind the cut.
        (FinishReason.LENGTH, 2, 3, 5),
    ],
)
def test_drafts_behind_an_accepted_end_do_not_count(finished, tokens, accepted, judged):
    """Five drafts, judged up to an accepted end token (maths section 10)."""
    kept = np.array([6, tokens])
    reasons = {} if finished is None else {1: finished}
    emission = Emission(kept, 0, Events(np.arange(2), np.full((2, 6), 7), kept, {}, reasons))
    scheduled = np.array([5, 5])
    assert emission.judged(scheduled, np.array([5, accepted])).tolist() == [5, judged]
    assert scheduled.tolist() == [5, 5], "the plan's own array was written to"


@pytest.mark.parametrize("replayed", [False, True])
def test_records_hold_every_request(make_engine, tiny, replayed):
    """Keys follow prompts and not rounds; an accepted end cuts what is judged, eager and replayed."""
    prompts = [[1, 2, 3], [4, 5]]
    engine = make_engine("fixed", replayed=replayed)
    records = []
    engine.verifier.add_observer("rows", records.append)
    ends = set()
    for prompt in prompts:
        text = tiny.greedy(tiny.Decoder(), prompt, 30)
        for length in range(12, 28):
            # The whole output so far: it can end nowhere else, often in the middle of accepted drafts.
            stop = tiny.Tokenizer().decode(text[:length])
            ends.add(engine.add(prompt, Sampling(max_tokens=30, stop_texts=(stop,))))
    done = engine.run()
    engine.verifier.drain()
    assert {done[request].reason for request in ends} == {FinishReason.STOP_TEXT}
    short = 0
    for record in records:
        row = record.rows
        assert set(row.keys) <= {prompt_key(prompt) for prompt in prompts}
        assert len(row.keys) == record.requests == len(row.scores)
        assert (sum(row.drafted), sum(row.admitted)) == (record.scheduled, record.verified)
        assert sum(row.accepted) == record.accepted
        cut = [i for i in range(record.requests) if row.judged[i] < row.drafted[i]]
        assert all(row.accepted[i] >= row.judged[i] >= 1 for i in cut)
        short += len(cut)
    assert 0 < short <= len(ends)


def test_equal_prompts_have_equal_keys():
    """53 bits, so that JSON readers keep them; order and length count."""
    assert prompt_key([1, 2]) == prompt_key([1, 2])
    assert len({prompt_key(p) for p in ([], [0], [0, 0], [1, 2], [2, 1])}) == 5
    assert 0 <= prompt_key(list(range(100))) < 2**53


def fates(engine, prompts, samplings):
    """Return, by prompt, what calibration is told of each step in order: drafted, accepted, judged."""
    records = []
    engine.verifier.add_observer("rows", records.append)
    for prompt, sampling in zip(prompts, samplings, strict=True):
        engine.add(prompt, sampling)
    engine.run()
    engine.verifier.drain()
    told = {prompt_key(prompt): [] for prompt in prompts}
    taught = 0
    for rows in (record.rows for record in records if record.rows is not None):
        for at, key in enumerate(rows.keys):
            if rows.learn[at]:
                told[key].append((rows.drafted[at], rows.accepted[at], rows.judged[at]))
            taught += not rows.learn[at]
    return told, taught


def test_requests_that_end_apart_teach_what_they_teach_eagerly(make_engine, tiny):
    """Rows of requests that ended in the step before teach nothing; the rows beside them are not cut."""
    prompts, samplings = tiny.prompts(9), []
    for at, prompt in enumerate(prompts):
        # The whole output so far: often in the middle of accepted drafts, and far from the last token.
        stop = tiny.Tokenizer().decode(tiny.greedy(tiny.Decoder(), prompt, 16 + at))
        samplings.append(Sampling(max_tokens=60, stop_texts=(stop,)))
    eager, none = fates(make_engine("fixed", drafter=LookupDrafter, max_requests=3), prompts, samplings)
    replayed, lost = fates(make_engine("fixed", replayed=True, max_requests=3), prompts, samplings)
    assert replayed == eager
    assert none == 0 < lost
    assert any(judged < drafted for steps in eager.values() for drafted, _, judged in steps)
