"""Which drafter runs: named, made for the model, or the one that needs no weights."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import rms_norm

from adaverify.drafting import choose_drafting
from adaverify.hooks import adaverify_register_benchmarks
from adaverify.session import Choice, open_session
from adaverify_contracts import DrafterDescriptor, EngineError, Seen, UnknownNameError, hookimpl
from adaverify_testing import TinyModel


class Echo:
    """Reads the model's last hidden states and drafts what they decide, again and again."""

    taps, queries = (2,), 1

    def __init__(self, limits, device):
        self.width = limits.draft_tokens

    def bind(self, target, dtype):
        self.target = target

    def block(self, features, tokens, positions, temperatures, attend):
        attend(0, torch.zeros(len(tokens), self.target.geometry.heads, self.target.geometry.head_dim))
        scores, drafts = self.target.logits(rms_norm(features, features.shape[1:])).max(dim=-1)
        return drafts[:, None].expand(-1, self.width), scores[:, None].expand(-1, self.width).float()


class EchoPlugin:
    """Registers ``echo`` for the tiny model; ``why`` is what stands in its way."""

    def __init__(self, why=""):
        self.why, self.asked = why, []

    @hookimpl
    def adaverify_register_drafters(self):
        def obstacle(draft_tokens):
            self.asked.append(draft_tokens)
            return self.why

        name = TinyModel().geometry.name
        return (
            DrafterDescriptor("echo", Seen.PREFIX, True, Echo, target=name, obstacle=obstacle),
            DrafterDescriptor("stranger", Seen.PREFIX, True, Echo, target="another-model"),
        )


def test_the_models_own_drafter_is_the_default_and_n_gram_stands_beside_it(tiny, run_tiny):
    """Four lines of figures, tokens compared over all of them, one sentence that holds them together."""
    plugin = EchoPlugin()
    tiny(plugin)
    result = run_tiny("--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert plugin.asked[-1] == 3
    assert report["setup"]["drafter"] == "echo"
    assert report["setup"]["drafter_fallback"] is None
    assert list(report["modes"]) == ["none", "fixed", "adaptive"]
    assert list(report["rivals"]) == ["n-gram"]
    rivals = report["rivals"]["n-gram"]
    assert list(rivals) == ["adaptive"]
    assert rivals["adaptive"]["stats"]["drafted"] != report["modes"]["adaptive"]["stats"]["drafted"]
    assert rivals["adaptive"]["ratio_to_best_other"] == pytest.approx(
        rivals["adaptive"]["tokens_per_second"] / report["modes"]["none"]["tokens_per_second"]
    )
    assert list(report["completions"][0]["modes"]) == ["none", "fixed", "adaptive", "n-gram adaptive"]
    assert report["tokens"]["identical"] is True


def test_both_drafters_are_on_the_screen(cold_cache, tiny, run_tiny):
    """Within 80 columns: a table a drafter, and how much one gains on the other."""
    tiny(EchoPlugin())
    result = run_tiny()
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.strip() == "Drafter n-gram" for line in lines)
    heads = [
        line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in ("fixed", "adaptive")
    ]
    assert (heads.count("fixed"), heads.count("adaptive")) == (2, 3)
    assert "echo against n-gram, tokens per second: adaptive " in " ".join(result.stdout.split())


def test_named_drafters_run_alone_or_against_each_other(tiny, run_tiny):
    """One name is one drafter; more are held against the first, in that order."""
    tiny(EchoPlugin())
    alone = json.loads(run_tiny("--drafter", "echo", "--json", "--mode", "fixed").stdout)
    assert (alone["setup"]["drafter"], alone["rivals"]) == ("echo", {})
    both = run_tiny("--drafter", "n-gram", "--drafter", "echo", "--json", "--mode", "fixed")
    both = json.loads(both.stdout)
    assert both["setup"]["drafter"] == "n-gram"
    assert list(both["rivals"]) == ["echo"]
    assert list(both["rivals"]["echo"]) == ["fixed"]


def test_a_drafter_that_cannot_serve_is_replaced_by_name_and_counted(tiny, run_tiny):
    """Said on standard error, in the report, and counted in every mode that drafts."""
    tiny(EchoPlugin("its weights are not there"))
    result = run_tiny("--json")
    report = json.loads(result.stdout)
    assert report["setup"]["drafter"] == "n-gram"
    assert "drafter echo is not used, its weights are not there" in report["setup"]["drafter_fallback"]
    assert "its weights are not there" in " ".join(result.stderr.split())
    assert report["rivals"] == {}
    counted = {mode: one["counters"].get("drafter-fallback", 0) for mode, one in report["modes"].items()}
    assert counted == {"none": 0, "fixed": 1, "adaptive": 1}


def test_naming_a_drafter_that_cannot_serve_is_an_error(tiny, run_tiny):
    """The user asked for this one: nothing else runs in its place."""
    tiny(EchoPlugin("its weights are not there"))
    for name, why in (
        ("echo", "its weights are not there"),
        ("stranger", "made for the model another-model"),
    ):
        result = run_tiny("--drafter", name)
        assert result.exit_code == 3
        assert why in " ".join(result.stderr.split())
        assert result.stdout == ""


def test_without_drafts_there_is_no_rival(tiny):
    """K = 0: both drafters would do nothing."""
    tiny(EchoPlugin())
    assert open_session(Choice(draft_tokens=0)).rivals == ()
    assert [one.name for one in open_session(Choice(draft_tokens=3)).rivals] == ["n-gram"]


def test_a_cost_table_belongs_to_its_drafter(tiny):
    """Drafting is a part of the price."""
    tiny(EchoPlugin())
    session = open_session(Choice())
    (rival,) = session.rivalled()
    assert session.fingerprint.differences(rival.fingerprint) == {"drafter": ("echo", "n-gram")}


def test_names_that_nothing_registered_are_refused():
    with pytest.raises(UnknownNameError):
        choose_drafting(("x",), {}, "m", 7)
    plain = DrafterDescriptor("n-gram", Seen.HISTORY, True, Echo, obstacle=lambda k: "no")
    with pytest.raises(EngineError, match="cannot serve: no"):
        choose_drafting(("n-gram",), {"n-gram": plain}, "m", 7)


class OwnBenchmarks:
    """Registers ours as the entry point does."""

    @hookimpl
    def adaverify_register_benchmarks(self):
        return adaverify_register_benchmarks()


def test_bench_times_whole_steps_with_a_named_drafter(tiny, invoke):
    """The step that is timed drafts with it; a name that nothing registered is refused."""
    tiny(EchoPlugin(), OwnBenchmarks())
    small = ("--device", "cpu", "--dtype", "float32", "--requests", 2, "--steps", 3, "--repeat", 1)
    found = invoke("bench", "step", "--drafter", "echo", "--json", "-", *small)
    assert found.exit_code == 0, found.stderr
    (one,) = json.loads(found.stdout)["benchmarks"]
    assert "echo drafts" in one["data"]
    assert one["facts"]["captured"] is True
    refused = invoke("bench", "step", "--drafter", "psychic", *small)
    assert refused.exit_code == 3
    assert "no drafter is named 'psychic'" in refused.stderr
