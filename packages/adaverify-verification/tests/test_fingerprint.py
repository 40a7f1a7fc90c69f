"""What a cost table belongs to."""

import pytest

from adaverify_contracts import CostTableError
from adaverify_verification import Fingerprint


def here(**changes):
    facts = {
        "device": "H200",
        "torch": "2.11.0+cu130",
        "kernels": ("deep-gemm 2.5.0",),
        "model": "smollm2-135m",
        "ladder": (8, 16, 24),
        "draft_tokens": 7,
        "dtype": "bfloat16",
    }
    return Fingerprint.of(**{**facts, **changes})


def test_equal_facts_make_equal_fingerprints_in_any_order():
    """Pairs are sorted, and lists, tuples and numbers have one spelling."""
    assert here() == here(ladder=[8, 16, 24])
    assert Fingerprint.from_mapping({"b": 1, "a": "x"}) == Fingerprint.from_mapping({"a": "x", "b": "1"})


def test_every_difference_is_named_with_both_values():
    """FreeToken #71: 1 shard in the table, 4 here."""
    assert here(shards=1).differences(here(shards=4)) == {"shards": ("1", "4")}
    assert here().differences(here(threads=2)) == {"threads": (None, "2")}
    assert here().differences(here()) == {}


def test_pairs_out_of_order_are_refused():
    """A fingerprint compares as a tuple, so its order is part of the type."""
    with pytest.raises(CostTableError, match="sorted"):
        Fingerprint((("b", "1"), ("a", "2")))
    with pytest.raises(CostTableError):
        Fingerprint(())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("draft_tokens", -1),
        ("draft_tokens", True),
        ("draft_tokens", "7"),
        ("ladder", "x"),
        ("ladder", 5),
        ("ladder", (8, 4, -1)),
        ("ladder", (8, 4)),
        ("ladder", (1.5,)),
        ("shards", 0),
        ("kernels", 5),
    ],
)
def test_what_no_setup_has_is_refused_when_it_is_built(name, value):
    """A table with it could be saved, and not loaded."""
    with pytest.raises(CostTableError, match=name) as caught:
        here(**{name: value})
    assert caught.value.arrived == value
    assert caught.value.allowed and caught.value.remedy


def test_a_ladder_may_be_an_iterator():
    """It is read once."""
    assert here(ladder=iter((8, 16, 24))) == here()
