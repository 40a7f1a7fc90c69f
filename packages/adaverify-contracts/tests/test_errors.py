"""Every error says what is wrong, what arrived, what was allowed and what to do."""

import inspect
import pickle

import pytest

import adaverify_contracts
from adaverify_contracts import (
    AdaverifyError,
    CapabilityError,
    CaptureError,
    CostTableError,
    DuplicateNameError,
    EngineError,
    FingerprintMismatchError,
    GraphError,
    ModelFileError,
    NoStrategyError,
    PluginError,
    PromptError,
    StaleBufferError,
    UnknownNameError,
)

ERRORS = [
    value
    for value in vars(adaverify_contracts).values()
    if inspect.isclass(value) and issubclass(value, AdaverifyError)
]
PLAIN = [
    error
    for error in ERRORS
    if list(inspect.signature(error).parameters)[1:] == ["arrived", "allowed", "remedy"]
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_caught_by_the_base(error):
    assert issubclass(error, AdaverifyError)
    assert issubclass(error, Exception)


@pytest.mark.parametrize("error", PLAIN, ids=lambda error: error.__name__)
def test_the_four_parts_are_shown_and_kept(error):
    raised = error("the budget is negative.", arrived=-5, allowed="an int >= 0", remedy="clamp it")
    assert str(raised) == "the budget is negative; arrived: -5; allowed: an int >= 0; to do: clamp it"
    assert (raised.problem, raised.arrived, raised.allowed, raised.remedy) == (
        "the budget is negative.",
        -5,
        "an int >= 0",
        "clamp it",
    )


def test_parts_that_are_missing_are_left_out():
    assert str(AdaverifyError("nothing fits")) == "nothing fits"
    assert str(AdaverifyError("nothing fits", allowed="7")) == "nothing fits; allowed: 7"


def test_what_arrived_is_shown_as_it_is_written():
    assert "arrived: ''" in str(AdaverifyError("empty", arrived=""))
    assert "arrived: 0" in str(AdaverifyError("zero", arrived=0))
    assert "arrived: False" in str(AdaverifyError("off", arrived=False))


def test_kinds_nest_as_their_names_say():
    for child, parent in (
        (NoStrategyError, CapabilityError),
        (CaptureError, GraphError),
        (StaleBufferError, GraphError),
        (FingerprintMismatchError, CostTableError),
        (DuplicateNameError, PluginError),
        (UnknownNameError, PluginError),
        (ModelFileError, EngineError),
        (PromptError, EngineError),
    ):
        assert issubclass(child, parent)


def test_a_duplicate_name_names_both_distributions():
    error = DuplicateNameError("strategy", "flatten", ("adaverify-a", "adaverify-b"))
    assert "strategy 'flatten' is registered by both adaverify-a and adaverify-b" in str(error)
    assert (error.kind, error.name, error.owners) == ("strategy", "flatten", ("adaverify-a", "adaverify-b"))


def test_an_unknown_name_lists_what_was_discovered():
    """What the user named is found and works, or it is an error that lists what was found (vllm #48277)."""
    error = UnknownNameError("strategy", "flaten", ("flatten", "uniform"))
    assert "allowed: flatten, uniform" in str(error)
    assert error.known == ("flatten", "uniform")
    assert "no strategy was discovered" in str(UnknownNameError("strategy", "flatten", ()))
    assert "kept a plugin" not in error.remedy


def test_an_unknown_name_says_which_plugins_are_not_used():
    """One of them may provide the name: advice to install it is wrong then."""
    why = ("plugin evil was not loaded (raised): OSError: no calibration",)
    error = UnknownNameError("model", "tiny", ("large",), why)
    assert str(error).startswith(f"no model is named 'tiny'; {why[0]}; arrived: 'tiny'; allowed: large; ")
    assert "cure what kept a plugin from loading" in error.remedy
    assert error.not_loaded == why


def test_no_strategy_gives_every_candidate_with_all_its_reasons():
    """One check failed, and the next one only once the first was cured: vllm #56620, recipes #962."""
    reasons = {
        "varlen": ("architecture is sm90, needs sm100 or sm103", "kernel paged is absent"),
        "flatten": ("kernel paged is absent",),
    }
    error = NoStrategyError("no decode strategy fits", reasons)
    for name, why in reasons.items():
        assert f"{name}: {'; '.join(why)}" in str(error)
    assert error.reasons is reasons
    assert "adaverify doctor" in error.remedy


def test_a_refusal_names_the_chip_the_chips_needed_and_the_way_out():
    """A ValueError that helps nobody on SM90 with the documented command: vllm #47808."""
    error = NoStrategyError(
        "adaptive verification has no strategy here",
        {"varlen": ("architecture is sm90, needs sm100 or sm103",)},
        remedy="run with --mode fixed to turn it off",
    )
    for part in ("sm90", "sm100 or sm103", "--mode fixed"):
        assert part in str(error)
    assert "no candidates" in str(NoStrategyError("nothing was registered", {}))


def test_a_fingerprint_mismatch_names_each_field_with_both_values():
    """Calibrated at batch 1 on 1 shard, served on 4: refuse, naming field and values (FreeToken #71)."""
    error = FingerprintMismatchError({"shards": (1, 4), "gpu": ("A", "B")})
    assert "shards: table 1, here 4" in str(error)
    assert "gpu: table 'A', here 'B'" in str(error)
    assert error.arrived == ("shards", "gpu")


def test_a_plugin_error_keeps_the_plugin():
    assert PluginError("it broke", plugin="sm90-flatten").plugin == "sm90-flatten"


@pytest.mark.parametrize(
    "error",
    [
        AdaverifyError("the budget is negative", arrived=-5, allowed="0", remedy="clamp it"),
        PluginError("it broke", plugin="sm90-flatten"),
        DuplicateNameError("strategy", "flatten", ("a", "b")),
        UnknownNameError("strategy", "flaten", ("flatten",)),
        NoStrategyError("nothing fits", {"varlen": ("kernel paged is absent",)}),
        FingerprintMismatchError({"shards": (1, 4)}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_a_process_with_its_text_and_attributes(error):
    """Engines run their workers as processes; an error that cannot be unpickled breaks the pool instead."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_the_value_none_arrives_too():
    """A file that holds null, or an argument that is None, was refused without saying so."""
    told = AdaverifyError("no table", arrived=None)
    assert str(told) == "no table; arrived: None"
    assert told.has_arrived and not AdaverifyError("no table").has_arrived
    assert str(told.within("here")) == "here: no table; arrived: None"
    assert str(PluginError("it broke", arrived=None)) == "it broke; arrived: None"
    assert str(PluginError("it broke")) == "it broke"
