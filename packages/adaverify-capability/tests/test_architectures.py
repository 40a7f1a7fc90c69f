"""The table of architectures is exact."""

import pytest

from adaverify_capability import ARCHITECTURES, architecture_of, assume
from adaverify_contracts import LayoutError, Requirements


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ((8, 0), "sm80"),
        ((8, 9), "sm89"),
        ((9, 0), "sm90"),
        ((10, 0), "sm100"),
        ((10, 1), "sm101"),
        ((10, 3), "sm103"),
        ((10, 7), "sm107"),
        ((12, 0), "sm120"),
        ((12, 1), "sm121"),
        ("gfx942", "gfx942"),
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("gfx950", "gfx950"),
        ("cpu", "cpu"),
    ],
)
def test_a_listed_device_has_its_own_word(key, word):
    assert architecture_of(key) == word


@pytest.mark.parametrize(
    "key", [(9, 1), (10, 2), (12, 2), (0, 0), (1, 20), "gfx9-4-generic", "gfx94", "", "sm90"]
)
def test_a_neighbour_of_a_listed_device_is_unknown(key):
    """(1, 20) would be spelt like (12, 0); nothing is looked up by spelling."""
    assert architecture_of(key) == "unknown"


@pytest.mark.parametrize("key", [None, 90, (9,), (9, 0, 0), (9.0, 0), (True, False), [9, 0]])
def test_a_malformed_key_is_an_error_that_says_what_arrived(key):
    with pytest.raises(LayoutError) as caught:
        architecture_of(key)
    assert caught.value.arrived == key
    assert "(major, minor)" in str(caught.value)


def test_words_are_unique_and_agree_with_their_capability():
    for word, row in ARCHITECTURES.items():
        if row.compute_capability is not None:
            assert architecture_of(row.compute_capability) == word
            assert word == "sm{}{}".format(*row.compute_capability)
        assert row.processors >= 1


@pytest.mark.parametrize("word", ["sm101", "sm103", "sm107", "sm120", "sm121"])
def test_a_family_is_no_proof_for_its_members(word):
    """A device of the SM12x line fell to an older path in silence: flash-attention #2529."""
    reasons = Requirements(architectures=("sm90", "sm100")).unmet(assume(word))
    assert reasons == (f"architecture is {word}, needs sm90 or sm100",)
