"""Options and sampling check themselves."""

from __future__ import annotations

import pytest

from adaverify_contracts import EngineError
from adaverify_engine import EngineOptions, Sampling
from adaverify_engine.options import prefill_chunk_on


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"seed": -1},
        {"stop_tokens": (-2,)},
        {"stop_tokens": 5},
        {"stop_tokens": [61]},
        {"temperature": 1e-38},
        {"temperature": 1e-300},
        {"temperature": 10**400},
        {"top_p": 1e-300},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-46},
        {"repetition_penalty": 10**400},
        {"presence_penalty": 1e39},
        {"presence_penalty": float("inf")},
        {"frequency_penalty": -1e38},
        {"ignore_stop_tokens": "no"},
        {"learn": "no"},
        {"logprobs": 1},
        {"stream": None},
        {"trim_invariant": 1},
        {"stop_texts": ("",)},
        {"stop_texts": "text"},
    ],
)
def test_bad_sampling_is_refused(field):
    """Each bad field is named, with what is allowed and what to do."""
    (name,) = field
    with pytest.raises(EngineError, match=name) as caught:
        Sampling(**field)
    assert caught.value.allowed
    assert caught.value.remedy


@pytest.mark.parametrize(
    "field",
    [
        {"max_requests": 0},
        {"draft_tokens": -1},
        {"max_model_len": 1},
        {"page_size": 0},
        {"num_pages": 1},
        {"prefill_chunk": 0},
        {"seed": -3},
        {"dtype": "float16"},
        {"dtype": ["float32"]},
        {"device": 5},
        {"seed": 2**63},
        {"page_size": 10**30},
        {"num_pages": 2**31},
        {"max_requests": 10**30},
        {"device": None},
        {"device": ""},
    ],
)
def test_bad_options_are_refused(field):
    """Each bad size is named."""
    (name,) = field
    with pytest.raises(EngineError, match=name):
        EngineOptions(**field)


def test_pool_covers_every_worst_case_by_default():
    """By default nobody waits for pages: one table width each, and the null page."""
    options = EngineOptions(max_requests=3, draft_tokens=4, max_model_len=60, page_size=16)
    assert options.limits.table_width == 4
    assert options.pool_pages == 13


@pytest.mark.parametrize(
    ("device", "chunk"), [("cpu", 256), ("cpu:0", 256), ("cuda", 4096), ("cuda:1", 4096)]
)
def test_prompts_are_read_in_few_steps_on_an_accelerator(device, chunk):
    """A step with a prompt in it is no captured one."""
    assert prefill_chunk_on(device) == chunk
