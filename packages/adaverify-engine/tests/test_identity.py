"""Token identity in float32: modes, chunking, batch mates and the oracle agree (design section 11)."""

from __future__ import annotations

import pytest

from adaverify_engine import Sampling
from adaverify_engine.row_tiers import ROWS, whole_rows

MODES = ("none", "fixed", "adaptive")


def run(engine, prompts, sampling):
    ids = [engine.add(prompt, sampling) for prompt in prompts]
    done = engine.run()
    return [done[request] for request in ids]


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_the_three_modes_and_the_oracle_emit_the_same_tokens(make_engine, tiny, concurrency):
    """Greedy text does not depend on the mode, nor on how many requests run at once."""
    prompts = tiny.prompts(max(concurrency, 5))
    model = tiny.Decoder()
    results = {}
    for mode in MODES:
        engine = make_engine(mode, model=model, max_requests=concurrency)
        results[mode] = run(engine, prompts, Sampling(max_tokens=40))
        if mode != "none":
            assert engine.stats.accepted > 20, "the tiny model must repeat itself, or nothing is tested"
        if mode == "adaptive" and concurrency > 1:
            assert 0 < engine.stats.verified < engine.stats.drafted, "nothing was trimmed"
    for number, prompt in enumerate(prompts):
        expected = tiny.greedy(model, prompt, 40)
        plain = results["none"][number]
        same = [a == b for a, b in zip(plain.tokens, expected, strict=True)]
        assert all(same) or plain.gaps[same.index(False)] < 1e-4
        for mode in ("fixed", "adaptive"):
            assert tiny.same(plain, results[mode][number])


def test_padding_to_tiers_changes_no_token(make_engine, tiny):
    """Steps padded to captured sizes emit the same; padding slots belong to nobody (vllm-ascend #14510)."""
    prompts, model = tiny.prompts(6), tiny.Decoder()
    plain = run(make_engine("none", model=model), prompts, Sampling(max_tokens=30))
    for mode in ("fixed", "adaptive"):
        engine = make_engine(mode, model=model)
        engine.verifier.manager.set_tiers((1, 24))
        model.calls.clear()
        padded = run(engine, prompts, Sampling(max_tokens=30))
        assert all(tiny.same(a, b) for a, b in zip(plain, padded, strict=True))
        # No step of four requests with their drafts needs more than 24 rows, and few need more than 16.
        assert model.calls.count(whole_rows(24)) > 5


def test_a_cpu_computes_few_numbers_of_rows(make_engine, tiny):
    """Each number of rows it had not met cost oneDNN a tenth of a step; what is padded reaches no token."""
    model = tiny.Decoder()
    run(make_engine("adaptive", model=model, max_requests=6), tiny.prompts(9), Sampling(max_tokens=30))
    assert {rows for rows in model.calls if rows % ROWS} <= {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("count", "rows"),
    [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (16, 16), (17, 32), (385, 400)],
)
def test_rows_are_powers_of_two_and_then_whole_tiles(count, rows):
    """Up to eight rows the weights are the traffic, and a request alone should not compute sixteen."""
    assert whole_rows(count) == rows


@pytest.mark.parametrize("mode", MODES)
def test_drafts_save_steps_and_modes_differ_in_what_they_verify(make_engine, tiny, mode):
    """Fixed verifies all it schedules, none nothing; steps fall accordingly."""
    engine = make_engine(mode, max_requests=1)
    (done,) = run(engine, [[1, 2, 3]], Sampling(max_tokens=60))
    stats = engine.stats
    assert len(done.tokens) == 60
    if mode == "none":
        assert (stats.drafted, stats.verified, done.steps) == (0, 0, 59)
    elif mode == "fixed":
        assert stats.verified == stats.drafted > 0
        assert done.steps < 45
    assert stats.emitted + stats.discarded == stats.accepted + stats.decode_requests + 1


@pytest.mark.parametrize("chunk", [1, 3, 6, 7, 64])
def test_chunked_prefill_equals_unchunked(make_engine, tiny, chunk):
    """The prompt is computed in pieces of any size with the same result."""
    prompts = [list(range(1, 31)), [7] * 13, [4]]
    whole = run(make_engine("fixed", prefill_chunk=96), prompts, Sampling(max_tokens=20))
    pieces = run(make_engine("fixed", prefill_chunk=chunk), prompts, Sampling(max_tokens=20))
    assert all(tiny.same(a, b) for a, b in zip(whole, pieces, strict=True))


def test_prompt_chunk_of_a_decode_length_is_prefill(make_engine, tiny):
    """A prompt of exactly K + 1 tokens is prefill because computed < prompt length (vllm #50532, #51865)."""
    engine = make_engine("fixed", draft_tokens=5, prefill_chunk=6)
    first = engine.add([1, 2, 3], Sampling(max_tokens=30))
    engine.step()
    second = engine.add([9, 8, 7, 6, 5, 4], Sampling(max_tokens=30))
    before = engine.stats.prompt_tokens
    engine.step()
    assert engine.stats.prompt_tokens - before == 6
    done = engine.run()
    model = tiny.Decoder()
    assert list(done[first].tokens) == tiny.greedy(model, [1, 2, 3], 30)
    assert list(done[second].tokens) == tiny.greedy(model, [9, 8, 7, 6, 5, 4], 30)


def test_sampled_text_does_not_depend_on_trimming_or_batch_mates(make_engine, tiny):
    """Noise belongs to (request, output position), so sampled text is the same in every mode and company."""
    prompts = tiny.prompts(6)
    sampling = [Sampling(temperature=0.5, top_p=0.9, seed=seed, max_tokens=30) for seed in range(6)]

    def texts(mode, concurrency):
        engine = make_engine(mode, max_requests=concurrency)
        ids = [engine.add(p, s) for p, s in zip(prompts, sampling, strict=True)]
        done = engine.run()
        return [done[i].tokens for i in ids]

    alone = texts("none", 1)
    assert alone == texts("none", 4) == texts("fixed", 1) == texts("adaptive", 4) == texts("fixed", 6)


def test_greedy_requests_are_untouched_by_sampled_batch_mates(make_engine, tiny):
    """A sampled request in the batch changes nothing for a greedy one."""
    engine = make_engine("adaptive")
    greedy = engine.add([3, 1, 4], Sampling(max_tokens=25))
    engine.add([2, 7, 1], Sampling(temperature=1.0, max_tokens=25))
    assert list(engine.run()[greedy].tokens) == tiny.greedy(tiny.Decoder(), [3, 1, 4], 25)
