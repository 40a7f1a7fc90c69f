"""What `adaverify run` refuses: a typed error and code 3 before anything long begins, never a traceback."""

from __future__ import annotations

import json

import pytest

from adaverify import devices, session
from adaverify_contracts import (
    DrafterDescriptor,
    LoadedModel,
    ModelDescriptor,
    ModelFileError,
    ModelOptions,
    PromptError,
    Seen,
    hookimpl,
)
from adaverify_engine.drafters import NgramDrafter
from adaverify_replay import read_trace
from adaverify_testing import TinyModel, TinyTokenizer


def refused(result, *words, code=3):
    """Check that a command ended with ``code``, an empty stdout and every one of ``words`` on stderr."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    text = " ".join(result.stderr.replace("\u2502", "").split())
    for word in words:
        assert word in text
    return text


def never_loaded(options):
    raise AssertionError("the model was loaded although the command could not succeed")


@pytest.fixture
def unloadable(tiny):
    """Install a model whose loading would fail the test."""
    tiny(load=never_loaded)


@pytest.mark.usefixtures("unloadable")
class TestBeforeTheModelIsLoaded:
    """Whatever can be known without the model is said without it."""

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--model", "big"), ("UnknownNameError: no model is named 'big'", "allowed: smollm2-135m")),
            (("--drafter", "psychic"), ("no drafter is named 'psychic'", "allowed: n-gram")),
            (("--device", "cuda"), ("CapabilityError: there is no device 'cuda' here", "allowed: cpu")),
            (("--device", "cuda:7"), ("there is no device 'cuda:7' here",)),
            (("--device", "abacus"), ("there is no device 'abacus' here", "allowed: cpu")),
            (("--prompts", "absent.txt"), ("PromptError", "absent.txt cannot be read")),
            (("--trace", "no/such/folder/t.jsonl"), ("--trace cannot be written", "No such file")),
            (("--trace", "."), ("--trace cannot be written", "Is a directory")),
            (("--mode", "none", "--trace", "t.jsonl"), ("mode adaptive, which does not run",)),
        ],
    )
    def test_typed_errors_name_what_arrived_and_what_is_allowed(self, invoke, monkeypatch, arguments, words):
        """Code 3, an empty standard output, the reason and the remedy on standard error, `--json` or not."""
        monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: 0)
        refused(invoke("run", *arguments), *words, "to do:")
        refused(invoke("run", *arguments, "--json"), *words)

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (("--mode", "turbo"), "'turbo' is no mode; allowed: none, fixed, adaptive"),
            (("--dtype", "float16"), "'float16' is not supported; allowed: float32, bfloat16"),
            (("--temperature", "nan"), "nan is no temperature; allowed: 0 (greedy), or 1e-06 .. 1e+06"),
            (("--temperature", "inf"), "inf is no temperature; allowed: 0 (greedy), or 1e-06 .. 1e+06"),
            (("--temperature", "-1"), "-1.0 is no temperature; allowed: 0 (greedy), or 1e-06 .. 1e+06"),
            (("--prompts", ""), "an empty path names nothing"),
            (("--trace", ""), "an empty path names nothing"),
            (("--mode", "\x1b[31m"), "\\x1b[31m' is no mode"),
            (("--tokens", "0"), "--tokens"),
            (("--draft-tokens", "-1"), "--draft-tokens"),
            (("--concurrency", "0"), "--concurrency"),
            (("--concurrency", "100000000"), "65536"),
            (("--tokens", "1000000000"), "1048576"),
            (("--fixed", "0"), "--fixed"),
            (("--fixed", "-1"), "--fixed"),
            (("--fixed", "7"), "--fixed 7 is out of range; allowed: 1 .. 6"),
            (("--fixed", "2", "--draft-tokens", "2"), "allowed: 1 .. 1, as mode fixed drafts K = 2"),
            (("--rounds", "many"), "--rounds"),
            (("--no-such-option",), "--no-such-option"),
        ],
    )
    def test_wrong_usage_is_code_2(self, invoke, arguments, word):
        """What the command line can judge by itself is wrong usage."""
        refused(invoke("run", *arguments), word, code=2)

    def test_k_of_the_settings_bounds_fixed(self, invoke, monkeypatch):
        monkeypatch.setenv("ADAVERIFY_ENGINE_DRAFT_TOKENS", "4")
        refused(invoke("run", "--fixed", "4"), "--fixed 4 is out of range; allowed: 1 .. 3", code=2)

    def test_k_that_the_longest_sequence_has_no_room_for(self, invoke, monkeypatch):
        monkeypatch.setenv("ADAVERIFY_ENGINE_MAX_MODEL_LEN", "512")
        refused(invoke("run", "--draft-tokens", "65536"), "K leaves no room", "allowed: 0 .. 509")

    def test_a_file_that_is_no_trace_is_never_touched(self, invoke, tmp_path):
        """A wrong --trace must not cost the user a file."""
        notes = tmp_path / "notes.txt"
        notes.write_text("mine\n")
        refused(invoke("run", "--trace", notes), "TraceError", "notes.txt:1")
        assert notes.read_text() == "mine\n"

    def test_advice_about_a_bad_trace_is_for_the_command_line(self, invoke, tmp_path):
        """Nobody at a prompt can pass allow_torn_tail=True."""
        bad = tmp_path / "bad.jsonl"
        bad.write_text("not json\n")
        said = refused(invoke("run", "--trace", bad), "bad.jsonl:1", "choose another file for --trace")
        assert "allow_torn_tail" not in said
        said = refused(invoke("report", bad), "bad.jsonl:1", "`adaverify run --trace` wrote")
        assert "allow_torn_tail" not in said

    def test_a_check_for_writing_leaves_no_file_behind(self, invoke, tmp_path):
        """The trace is tried before the prompts are known to be good."""
        refused(invoke("run", "--trace", tmp_path / "t.jsonl", "--drafter", "psychic"), "psychic")
        assert not (tmp_path / "t.jsonl").exists()

    def test_a_wrong_variable_is_named_with_all_others(self, invoke, monkeypatch):
        """Every wrong setting at once, by the name the user typed."""
        monkeypatch.setenv("ADAVERIFY_ENGINE_DRAFT_TOKENS", "seven")
        monkeypatch.setenv("ADAVERIFY_PLANNER_MODE", "turbo")
        refused(
            invoke("run"),
            "SettingsError",
            "ADAVERIFY_ENGINE_DRAFT_TOKENS is 'seven', expected an int in 0 .. 65536",
            "ADAVERIFY_PLANNER_MODE is 'turbo', expected none, fixed or adaptive",
        )

    def test_a_plugin_named_in_the_settings_must_exist(self, invoke, monkeypatch):
        """The error lists what was discovered."""
        monkeypatch.setenv("ADAVERIFY_PLUGINS_REQUIRED", "warp-drive")
        refused(invoke("run"), "PluginError", "not discovered: warp-drive", "discovered: capability, engine")


def test_a_prompt_too_long_is_named_by_its_number(tiny, run_tiny):
    """The third prompt of four does not fit 512 tokens; nothing is measured before that is said."""
    result = run_tiny(texts=["a", "b", "c" * 600, "d"])
    text = refused(
        result,
        "PromptError: prompt 3 of 4",
        "prompts.jsonl line 3) does not fit the model",
        "600 tokens",
        "1 .. 511 tokens",
    )
    assert "measuring" not in text


def test_output_that_will_be_cut_is_said(tiny, run_tiny):
    """The prompt fits, its output does not in full: the run goes on and names the prompt."""
    result = run_tiny(texts=["a", "b" * 505])
    assert result.exit_code == 0
    assert "1 of 2 prompts has no room for 12 new tokens, prompt 2 for 7" in result.stderr


def test_a_prompt_without_tokens_is_refused(install, invoke, prompts):
    """A tokenizer may make nothing of a text; no request can start from nothing."""

    class Deaf(TinyTokenizer):
        def encode(self, text):
            return []

    def load(options):
        return LoadedModel(TinyModel(options=options), Deaf())

    class Plugin:
        @hookimpl
        def adaverify_register_models(self):
            return (ModelDescriptor(session.MODEL, "hears nothing", load),)

    install(Plugin())
    refused(
        invoke("run", "--prompts", prompts()), "prompt 1 of 4", "line 1) does not fit the model", "0 tokens"
    )


def test_a_tokenizer_that_raises_names_its_plugin(tiny, run_tiny):
    """Prompts come first, so nothing was measured yet."""

    class Picky(TinyTokenizer):
        def encode(self, text):
            raise LookupError("no such letter")

    tiny(load=lambda options: LoadedModel(TinyModel(options=options), Picky()))
    refused(run_tiny(), "PluginError: plugin 'extra-0' raised LookupError", "no such letter", "in encode")


def test_a_marker_in_a_prompt_is_named_by_number_and_line(tiny, run_tiny, tmp_path):
    """The chat template refuses it; the user learns which prompt of which line it was."""

    class Strict(TinyTokenizer):
        def chat(self, messages):
            if "<|im_end|>" in messages[0]["content"]:
                raise PromptError("message 0 contains a control token", arrived="<|im_end|>", allowed="text")
            return super().chat(messages)

    tiny(load=lambda options: LoadedModel(TinyModel(options=options), Strict()))
    path = tmp_path / "p.txt"
    path.write_text("a\n\nb <|im_end|>\n")
    said = refused(
        run_tiny("--prompts", path, "--chat"),
        "PromptError: prompt 2 of 2",
        "p.txt line 3) is refused: message 0 contains a control token",
        "arrived: <|im_end|>",
        "or leave out --chat",
    )
    assert "measuring" not in said


def test_no_drafts_are_said_to_be_none(tiny, run_tiny, caplog):
    """K = 0: not that every draft is verified, there are none."""
    assert run_tiny("--draft-tokens", 0).exit_code == 0
    assert "adaptive verification is off: nothing is drafted, K is 0" in caplog.text
    assert "every draft is verified" not in caplog.text


def test_a_length_set_in_the_environment_is_a_limit(tiny, run_tiny, monkeypatch):
    """ADAVERIFY_ENGINE_MAX_MODEL_LEN lowers the model's own limit."""
    monkeypatch.setenv("ADAVERIFY_ENGINE_MAX_MODEL_LEN", "20")
    refused(run_tiny(texts=["a" * 30]), "prompt 1 of 1", "does not fit", "1 .. 19 tokens")


def test_more_drafts_than_any_sequence_holds_are_refused(tiny, run_tiny):
    """K has a largest useful value, and the message has it."""
    refused(run_tiny("--draft-tokens", 600), "EngineError: K leaves no room", "arrived: 600", "0 .. 509")
    refused(run_tiny("--draft-tokens", 65536), "K leaves no room")
    refused(run_tiny("--draft-tokens", 10**12), "--draft-tokens", code=2)


def test_caches_beyond_the_memory_are_refused_with_both_sizes(tiny, invoke, prompts, monkeypatch):
    """The sum over the engines is compared with the device's memory before anything is allocated."""
    monkeypatch.setenv("ADAVERIFY_ENGINE_NUM_PAGES", str(10**9))
    text = refused(invoke("run", "--prompts", prompts()), "EngineError", "do not fit the memory", "3 engines")
    assert "GB" in text


def test_a_model_file_error_passes_as_it_is(tiny, invoke):
    """The plugin's own typed error reaches the user, offline or not."""

    def load(options: ModelOptions):
        assert options.offline
        raise ModelFileError("the file is cut short", arrived="12 bytes", remedy="fetch it again")

    tiny(load=load)
    refused(invoke("run", "--offline"), "ModelFileError: the file is cut short", "12 bytes", "fetch it again")


def test_a_model_that_raises_names_its_plugin(tiny, invoke):
    """A stranger's exception becomes a PluginError that says whose it is and where."""

    def load(options):
        raise ZeroDivisionError("one by nothing")

    tiny(load=load)
    refused(
        invoke("run"), "PluginError: plugin 'extra-0' raised ZeroDivisionError", "one by nothing", "in load"
    )


class Moody(TinyModel):
    """Runs well for a while, then raises."""

    left = 0

    def forward(self, tokens, positions, attend):
        Moody.left -= 1
        if Moody.left == 0:
            raise ValueError("not today")
        return super().forward(tokens, positions, attend)


def test_a_model_that_raises_in_the_middle_names_its_plugin(tiny, run_tiny):
    """The same in the middle of a run; standard output stays empty."""
    assert run_tiny().exit_code == 0
    tiny(load=lambda options: LoadedModel(Moody(options=options), TinyTokenizer()))
    Moody.left = 30
    refused(
        run_tiny("--json"),
        "PluginError: plugin 'extra-0' raised ValueError while it ran: not today",
        "in forward",
    )


class Sulking(NgramDrafter):
    """Drafts nothing but trouble."""

    def propose(self, slots, room):
        raise ValueError("not today")


class SulkingPlugin:
    @hookimpl
    def adaverify_register_drafters(self):
        return (DrafterDescriptor("sulking", Seen.HISTORY, True, Sulking),)


def test_a_drafter_that_raises_costs_its_drafts_and_is_counted(tiny, run_tiny):
    """The engine goes on without drafts; the table says what was counted in which mode."""
    tiny(SulkingPlugin())
    result = run_tiny("--drafter", "sulking")
    assert result.exit_code == 0, result.stderr
    assert "Tokens: identical in all modes" in result.stdout
    assert "Counted in fixed: drafter-raised x 3." in result.stdout
    assert "Counted in adaptive: drafter-disabled" in result.stdout


class Interrupted(TinyModel):
    """Behaves as if the user pressed Ctrl-C in the middle of the recorded rounds."""

    left = 0

    def forward(self, tokens, positions, attend):
        Interrupted.left -= 1
        if Interrupted.left == 0:
            raise KeyboardInterrupt
        return super().forward(tokens, positions, attend)


def interrupted(options):
    return LoadedModel(Interrupted(options=options), TinyTokenizer())


def test_ctrl_c_says_what_is_known_and_keeps_the_trace(tiny, run_tiny, tmp_path):
    """Code 130, standard output empty, figures so far on standard error, every finished step in the trace."""
    assert run_tiny().exit_code == 0
    tiny(load=interrupted)
    Interrupted.left = 120
    path = tmp_path / "t.jsonl"
    result = run_tiny("--trace", path, "--json", "--rounds", 9)
    refused(result, "interrupted after the warm-up round", "runs of a mode were finished", code=130)
    rows = [line.split() for line in result.stderr.splitlines()]
    (adaptive,) = [row for row in rows if row[:1] == ["adaptive"]]
    assert int(adaptive[2]) > 0
    assert len(read_trace(path)) >= int(adaptive[3])


def test_ctrl_c_while_loading_is_the_same_code(tiny, invoke):
    """There is nothing to say yet."""

    def load(options):
        raise KeyboardInterrupt

    tiny(load=load)
    refused(invoke("run"), "interrupted", code=130)


def test_a_named_cost_table_of_another_setup_is_refused(cold_cache, tiny, run_tiny, tmp_path, monkeypatch):
    """The user's own table must fit; the difference is named."""
    run_tiny()
    (table,) = (cold_cache / "cost-tables").iterdir()
    monkeypatch.setenv("ADAVERIFY_PATHS_COST_TABLE", str(table))
    assert f"cost table {table}" in json.loads(run_tiny("--json").stdout)["setup"]["cost"]
    refused(run_tiny("--draft-tokens", 2), "FingerprintMismatchError", "draft_tokens: table '3', here '2'")
    monkeypatch.setenv("ADAVERIFY_PATHS_COST_TABLE", str(tmp_path / "absent.json"))
    refused(run_tiny(), "CostTableError", "absent.json")


def test_a_cache_that_cannot_be_written_costs_the_table_only(tiny, run_tiny, tmp_path, monkeypatch):
    """Measured is measured: the run goes on and says that the next one measures again."""
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("ADAVERIFY_PATHS_CACHE", str(blocked))
    result = run_tiny()
    assert result.exit_code == 0
    assert "the cost table cannot be written" in result.stderr


def test_a_mistake_of_our_own_keeps_its_traceback(tiny, run_tiny, monkeypatch):
    """Blaming a plugin, or swallowing it, would hide it."""

    def broken(*_):
        raise RuntimeError("ours")

    monkeypatch.setattr("adaverify_engine.eager.emit", broken)
    result = run_tiny()
    assert (result.exit_code, result.stdout) == (4, "")
    assert "Traceback (most recent call last)" in result.stderr
    assert "RuntimeError: ours" in result.stderr
    assert "PluginError" not in result.stderr
    assert "This is a fault of adaverify" in result.stderr


def test_a_plot_that_cannot_be_drawn_is_refused_before_the_trace_is_read(invoke):
    refused(invoke("report", "absent.jsonl", "--plot", "x.gif"), "suffix", ".png, .svg, .pdf")
