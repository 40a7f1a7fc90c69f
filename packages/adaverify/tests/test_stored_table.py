"""A stored cost table is used again under an equal fingerprint, and only then."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from adaverify.session import Session, stored_table, table_path
from adaverify_contracts import (
    CostTableError,
    DrafterDescriptor,
    EngineError,
    FingerprintMismatchError,
    ModelGeometry,
    Seen,
)
from adaverify_engine import EngineOptions
from adaverify_engine.drafters import NgramDrafter
from adaverify_runtime import PathSettings, Settings
from adaverify_testing import fake_capability
from adaverify_verification import CostTable, Fingerprint

POINTS = [(1, 1, 16, 0.01), (8, 1, 16, 0.02)]


@pytest.fixture
def session(tmp_path):
    """A session of no model but its sizes, on a fake device, with a cache of its own."""
    geometry = ModelGeometry("tiny", 1, 8, 1, 1, 8, 50, max_model_len=256, stop_tokens=())
    model = SimpleNamespace(model=SimpleNamespace(geometry=geometry), tokenizer=None)
    options = EngineOptions(max_requests=2, draft_tokens=3, max_model_len=64, page_size=4, dtype="float32")
    settings = Settings(paths=PathSettings(cache=tmp_path))
    drafter = DrafterDescriptor("n-gram", Seen.HISTORY, deterministic=True, factory=NgramDrafter)
    return Session(settings, None, model, drafter, options, fake_capability())


def test_an_equal_setup_uses_its_table_again(session):
    """vllm #52233: profiled again at every start."""
    assert stored_table(session) == (None, "no cost table for this setup yet")
    table = CostTable.from_points(session.fingerprint, POINTS)
    table.save(table_path(session))
    found, words = stored_table(session)
    assert found == table
    assert str(table_path(session)) in words


def test_another_drafter_has_another_file(session):
    """Its drafting is in the price."""
    other = replace(session, drafter=replace(session.drafter, name="echo"))
    assert table_path(session) != table_path(other)


@pytest.mark.parametrize("changes", [{"draft_tokens": 4}, {"dtype": "bfloat16"}, {"page_size": 8}])
def test_another_setup_has_another_file(session, changes):
    """K, dtype and page size are part of what a table was measured on; nothing is shared or overwritten."""
    CostTable.from_points(session.fingerprint, POINTS).save(table_path(session))
    other = replace(session, options=replace(session.options, **changes))
    assert table_path(other) != table_path(session)
    assert stored_table(other)[0] is None


def test_a_table_of_another_machine_is_measured_anew_or_refused_when_named(session):
    """The field that differs is named; a file the user named is never replaced in silence (vllm #52233)."""
    foreign = replace(session, options=replace(session.options, draft_tokens=4)).fingerprint
    path = table_path(session)
    CostTable.from_points(foreign, POINTS).save(path)
    found, words = stored_table(session)
    assert found is None
    assert "not usable" in words
    named = replace(session, settings=Settings(paths=PathSettings(cost_table=path)))
    with pytest.raises(FingerprintMismatchError, match="draft_tokens"):
        stored_table(named)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(CostTableError):
        stored_table(named)


@pytest.mark.parametrize(
    "content",
    ["", "{}", '{"format": "adaverify-cost-table", "version": 1, "pionts": []}', "\x00\xff", "[" * 5000],
)
def test_a_named_table_that_is_unusable_is_told_by_file_and_variable(session, tmp_path, content):
    """A table of another format said neither which file it was nor what had named it."""
    path = tmp_path / "named.json"
    path.write_bytes(content.encode("latin-1"))
    named = replace(session, settings=Settings(paths=PathSettings(cost_table=path)))
    with pytest.raises(CostTableError) as caught:
        stored_table(named)
    assert str(caught.value).startswith(f"ADAVERIFY_PATHS_COST_TABLE: cost table {path}: ")
    assert str(caught.value).count(str(path)) == 1
    assert "or set ADAVERIFY_PATHS_COST_TABLE to another table, or unset it" in caught.value.remedy


def test_a_named_table_of_another_machine_keeps_its_type_and_differences(session, tmp_path):
    path = tmp_path / "named.json"
    CostTable.from_points(Fingerprint.from_mapping({"device": "abacus"}), POINTS).save(path)
    named = replace(session, settings=Settings(paths=PathSettings(cost_table=path)))
    with pytest.raises(FingerprintMismatchError, match=f"cost table {path}") as caught:
        stored_table(named)
    assert caught.value.differences["device"][0] == "abacus"


def sized(session, memory, **options):
    chosen = replace(session.options, **options)
    small = replace(session, options=chosen, capability=replace(session.capability, memory_bytes=memory))
    return small.sized(2, 64)


def test_too_many_pages_are_blamed_on_the_pages(session):
    """A pool that the user chose does not grow with the requests or the length."""
    with pytest.raises(EngineError, match="1000000 pages of 4 tokens") as caught:
        sized(session, 10**6, num_pages=10**6)
    assert "ADAVERIFY_ENGINE_NUM_PAGES" in caught.value.remedy
    most = int(caught.value.remedy.split("at most ")[1].split(",")[0])
    assert sized(session, 10**6, num_pages=most).options.num_pages == most
    with pytest.raises(EngineError, match="pages"):
        sized(session, 10**6, num_pages=most + 1)


def test_a_pool_for_the_worst_case_is_blamed_on_requests_and_length(session):
    with pytest.raises(EngineError, match="2 requests of 128 tokens") as caught:
        sized(session, 1000)
    assert "--concurrency" in caught.value.remedy
