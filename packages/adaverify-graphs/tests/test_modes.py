"""The user's graph mode is kept exactly or refused; nothing changes it in silence."""

import pytest

from adaverify_contracts import GraphError, GraphSupport
from adaverify_graphs import resolve_mode

NEVER, UNIFORM, VARLEN, ALWAYS = GraphSupport


@pytest.mark.parametrize("requested", list(GraphSupport))
def test_a_requested_mode_that_is_available_is_kept(requested):
    """ "Full, decode only" was overridden without a word, about 7 GiB more (vllm #56626)."""
    mode = resolve_mode(requested, strategy=ALWAYS, device_lengths=True, backend_captures=True)
    assert mode.support is requested
    assert mode.reason == "as requested"


@pytest.mark.parametrize(("strategy", "device_lengths"), [(UNIFORM, True), (VARLEN, False), (UNIFORM, False)])
def test_ragged_graphs_need_the_declared_level_and_device_lengths_together(strategy, device_lengths):
    """Ragged flag true while the builder reports UNIFORM_BATCH: both are needed (vllm #47808)."""
    with pytest.raises(GraphError) as caught:
        resolve_mode(VARLEN, strategy=strategy, device_lengths=device_lengths, backend_captures=True)
    text = str(caught.value)
    assert ("declares UNIFORM_BATCH" in text) == (strategy is UNIFORM)
    assert ("does not read lengths" in text) == (not device_lengths)
    assert caught.value.allowed == "NEVER, UNIFORM_BATCH"


def test_all_reasons_are_given_at_once():
    with pytest.raises(GraphError) as caught:
        resolve_mode(VARLEN, strategy=UNIFORM, device_lengths=False, backend_captures=False)
    text = str(caught.value)
    assert "declares UNIFORM_BATCH" in text
    assert "does not read lengths" in text
    assert "does not capture" in text
    assert caught.value.allowed == "NEVER"


def test_an_open_choice_takes_the_highest_and_says_why():
    mode = resolve_mode(None, strategy=VARLEN, device_lengths=True, backend_captures=True)
    assert (mode.support, mode.requested) == (VARLEN, None)
    assert "VARLEN_DECODE" in mode.reason
    eager = resolve_mode(None, strategy=VARLEN, device_lengths=True, backend_captures=False)
    assert eager.support is NEVER
    assert "does not capture" in eager.reason
