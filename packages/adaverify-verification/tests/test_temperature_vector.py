"""Temperatures from the JSON of other engines, and what is refused of it."""

from __future__ import annotations

import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from adaverify_contracts import CalibrationError
from adaverify_verification.temperature_vector import temperatures_of

VALUES = [0.75, 1.0, 1.25]
FORMS = {
    "a plain list": VALUES,
    "sglang": {
        "temperatures": VALUES,
        "dataset": "shards/*.pt",
        "num_samples": 9,
        "ece_before": [0.1] * 3,
        "ece_after": [0.0] * 3,
    },
    "tensorrt-llm": {"sts_temperatures": VALUES, "max_draft_len": 3},
    "both spellings": {"sts_temperatures": VALUES, "temperatures": VALUES, "num_samples": 9},
    "a draft model's config": {"block_size": 3, "confidence_temperatures": VALUES, "model_type": "dspark"},
    "a config with a section": {"hidden_size": 576, "dspark_config": {"sts_temperatures": VALUES}},
    "by position from 1": {"1": 0.75, "2": 1.0, "3": 1.25},
    "by position from 0": {"0": 0.75, "1": 1.0, "2": 1.25},
    "by position within": {"temperatures": {"2": 1.0, "1": 0.75, "3": 1.25}},
    "a fit tool's report": {
        "payloads": 4,
        "temperatures": VALUES,
        "positions": [{"position": 0, "temperature": 0.75}],
    },
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_known_form_gives_the_same_temperatures(form):
    """The value as it comes from a file; without a regime it is for both."""
    found = temperatures_of(json.loads(json.dumps(form)), 3)
    assert {name: values.tolist() for name, values in found.items()} == {"greedy": VALUES, "sampled": VALUES}


@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: {"regimes": v}, lambda v: {"schema": "x/1", "modes": v}]
)
def test_regimes_stay_apart(wrap):
    """One of them alone says nothing about the other."""
    both = temperatures_of(wrap({"greedy": VALUES, "sampled": {"temperatures": [2, 2, 2]}}), 3)
    assert both["greedy"].tolist() == VALUES and both["sampled"].tolist() == [2.0, 2.0, 2.0]
    assert set(temperatures_of(wrap({"sampled": VALUES}), 3)) == {"sampled"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (VALUES[:2], r"2 temperatures were given for K = 3 draft tokens; arrived: \[0.75, 1.0\]"),
        ([1.0] * 4, "4 temperatures were given for K = 3"),
        ([], "0 temperatures"),
        ([1.0, 0.0, 1.0], "position 2 is out of range; arrived: 0.0"),
        ([1.0, 1.0, -1.0], "position 3 is out of range"),
        ([float("nan"), 1.0, 1.0], "position 1 is out of range; arrived: nan"),
        ([1.0, float("inf"), 1.0], "position 2"),
        ([1.0, 1e-9, 1.0], "position 2"),
        ([10**400, 1, 1], "position 1"),
        ([1.0, "1.0", 1.0], "no list of numbers; arrived"),
        ([True, 1.0, 1.0], "no list of numbers"),
        ([1.0, None, 1.0], "no list of numbers"),
        (1.0, "no list of numbers; arrived: 1.0"),
        (None, "no list of numbers"),
        ("1,1,1", "no list of numbers"),
        ({}, "no temperatures that are understood"),
        ({"temps": VALUES}, r"understood; arrived: \['temps'\]"),
        ({"2": 1.0, "3": 1.0, "4": 1.0}, "understood"),
        ({"1": 1.0, "3": 1.0}, "understood"),
        ({"temperatures": {"a": 1.0}}, "understood"),
        ({"temperatures": VALUES, "max_draft_len": 5}, "max_draft_len = 5 were given for K = 3"),
        ({"temperatures": VALUES, "sts_temperatures": [1.0] * 3}, "two different sets"),
        ({"greedy": VALUES, "sampled": [1.0]}, "1 temperatures"),
        ({"greedy": VALUES, "other": VALUES}, "understood"),
    ],
)
def test_anything_else_is_refused_with_what_arrived(value, words):
    """Another K, numbers no fit gives, other types, other keys: one typed error, and no guess."""
    with pytest.raises(CalibrationError, match=words):
        temperatures_of(value, 3)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["temperatures", "greedy", "regimes", "dspark_config", "1", "0", "x"]), inner
        )
    ),
    max_leaves=8,
)


@hypothesis.given(json_values)
@hypothesis.settings(max_examples=300, deadline=None)
def test_any_json_gives_temperatures_in_range_or_a_typed_error(value):
    """Nothing else comes out, whatever is read."""
    try:
        found = temperatures_of(value, 2)
    except CalibrationError:
        return
    assert set(found) <= {"greedy", "sampled"} and found
    for values in found.values():
        assert values.dtype == np.float64 and values.shape == (2,)
        assert ((values >= 0.01) & (values <= 100)).all()
