"""What the descriptor of a model, settings and sizes rule out is refused before the model is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaverify.hooks import adaverify_register_benchmarks
from adaverify.outset import Choice
from adaverify.session import load_session, open_session, prepare
from adaverify_contracts import DrafterDescriptor, PluginError, Seen, hookimpl
from adaverify_engine.drafters import NgramDrafter
from adaverify_testing import TinyModel
from adaverify_verification import CostTable, Fingerprint

GEOMETRY = TinyModel().geometry
"""512 tokens at most."""


def never_loaded(options):
    raise AssertionError("the model was loaded although the command could not succeed")


class Drafters:
    """Registers one that drafts four tokens at most, and one made for another model."""

    @hookimpl
    def adaverify_register_drafters(self):
        def obstacle(draft_tokens):
            return f"it drafts 4 tokens, and K is {draft_tokens}" if draft_tokens > 4 else ""

        return (
            DrafterDescriptor("four", Seen.HISTORY, True, NgramDrafter, obstacle=obstacle),
            DrafterDescriptor("stranger", Seen.HISTORY, True, NgramDrafter, target="another-model"),
        )


class Benchmarks:
    """Registers ours as the entry point does."""

    @hookimpl
    def adaverify_register_benchmarks(self):
        return adaverify_register_benchmarks()


@pytest.fixture
def declared(tiny):
    """Install a model whose descriptor has its sizes, and whose loading would fail the test."""
    tiny(Drafters(), Benchmarks(), load=never_loaded, geometry=GEOMETRY)


def refused(result, *words, code=3):
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    text = " ".join(result.stderr.split())
    for word in words:
        assert word in text
    return text


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--draft-tokens", 65536), ("K leaves no room", "arrived: 65536", "0 .. 509")),
        (("run", "--draft-tokens", 510), ("K leaves no room", "0 .. 509")),
        (("run", "--drafter", "stranger"), ("another-model",)),
        (("run", "--drafter", "four"), ("it drafts 4 tokens, and K is 7",)),
        (("profile", "--draft-tokens", 600), ("K leaves no room", "0 .. 509")),
        (("profile", "--concurrency", 10**12), ("max_requests is out of range",)),
        (("profile", "--concurrency", 300_000_000), ("does not fit int32", "lower max_requests")),
        (("profile", "--concurrency", 10**8), ("do not fit the memory", "100000000 requests of 512 tokens")),
        (("calibrate", "--draft-tokens", 510), ("K leaves no room",)),
        (("calibrate", "--draft-tokens", 0), ("no drafts to calibrate on", "--draft-tokens of 1 or more")),
        (("calibrate", "--count", 1), ("one prompt cannot be split", "at least 2 prompts")),
        (("record", "--out", "r.npz", "--draft-tokens", 0), ("records of this K", "1 .. 64")),
        (("record", "--out", "r.npz", "--draft-tokens", 65), ("records of this K", "arrived: 65")),
        (("record", "--out", "r.npz", "--drafter", "n-gram"), ("n-gram cannot be recorded",)),
        (("record", "--out", "r.npz"), ("n-gram cannot be recorded",)),
        (("bench", "all", "--drafter", "psychic", "--device", "cpu"), ("no drafter is named 'psychic'",)),
        (("bench", "all", "--model", "big", "--device", "cpu"), ("no model is named 'big'",)),
        (("bench", "endtoend", "--out", "a-file/x", "--device", "cpu"), ("folder of --out", "Not a dir")),
    ],
)
def test_what_cannot_be_is_refused_without_the_model(invoke, tmp_path, arguments, words):
    """The reason, what is allowed and what to do, in the time that plugins take to load."""
    (tmp_path / "a-file").write_text("")
    refused(invoke(*arguments), *words)


@pytest.mark.usefixtures("declared")
def test_the_largest_k_is_not_refused():
    """509 drafts, a context token, a certain one and a bonus token are 512."""
    assert prepare(Choice(draft_tokens=509)).options.draft_tokens == 509


@pytest.mark.usefixtures("declared")
def test_a_named_cost_table_is_held_against_what_is_known(invoke, tmp_path, monkeypatch):
    """A file that is not there, and one of another K; without the mode adaptive nobody reads it."""
    path = tmp_path / "table.json"
    monkeypatch.setenv("ADAVERIFY_PATHS_COST_TABLE", str(path))
    refused(invoke("run"), "ADAVERIFY_PATHS_COST_TABLE", "table.json")
    known = prepare(Choice()).fingerprint(4)
    other = Fingerprint.from_mapping({**dict(known.pairs), "draft_tokens": 3})
    CostTable.from_points(other, [(1, 1, 16, 1e-3), (8, 1, 16, 2e-3)]).save(path)
    refused(invoke("run"), "FingerprintMismatchError", "draft_tokens: table '3', here '7'")
    refused(invoke("profile", "--draft-tokens", 600), "K leaves no room")


@pytest.mark.usefixtures("declared")
def test_a_trace_of_the_settings_is_tried_first(invoke, monkeypatch):
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", "no/such/folder/t.jsonl")
    refused(invoke("run"), "ADAVERIFY_PATHS_TRACE cannot be written", "No such file")


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("command", [("run",), ("profile",), ("calibrate",), ("run", "--mode", "none")])
def test_what_keeps_a_verifier_from_being_assembled_is_said_at_once(invoke, monkeypatch, command):
    """Every reason in one message: curing the first one would not meet the next."""
    monkeypatch.setenv("ADAVERIFY_DEVICE_STRATEGY", "ghost")
    monkeypatch.setenv("ADAVERIFY_PLANNER_POLICY", "astrology")
    refused(invoke(*command), "no verifier can be assembled here", "ghost", "no policy is named 'astrology'")


def test_sizes_known_beforehand_are_those_of_the_session(tiny):
    """What was checked before loading is what serves afterwards."""
    tiny(geometry=GEOMETRY)
    outset = prepare(Choice(dtype="float32", device="cpu"))
    session = load_session(outset).sized(4, 64)
    assert (outset.longest, outset.fingerprint(4)) == (session.longest, session.fingerprint)
    assert outset.drafting.first is session.drafter


def test_a_model_that_its_descriptor_misdescribes_is_refused(tiny):
    """Refusals before loading would be of another model."""
    tiny(geometry=replace(GEOMETRY, max_model_len=1024))
    with pytest.raises(PluginError, match="is not what its descriptor says") as caught:
        open_session(Choice(dtype="float32", device="cpu"))
    assert "max_model_len=512" in str(caught.value) and "max_model_len=1024" in str(caught.value)
