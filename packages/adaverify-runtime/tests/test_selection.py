"""Selection: priority, all reasons at once, explicit names, and never a silent replacement."""

import pytest

from adaverify_contracts import (
    GraphSupport,
    KernelLevel,
    KernelReport,
    Limits,
    NoStrategyError,
    Requirements,
    UnknownNameError,
    hookimpl,
)
from adaverify_runtime.plugins import PluginManager
from adaverify_runtime.selection import limit_reasons, select_strategies

LIMITS = Limits(max_requests=8, draft_tokens=7, max_model_len=1024, page_size=64)


@pytest.fixture
def manager_of():
    """Register strategies through a real plugin."""

    def build(*descriptors):
        class Plugin:
            @hookimpl
            def adaverify_register_decode_strategies(self):
                return descriptors

        manager = PluginManager()
        manager.register(Plugin(), "plugin", owner="some-dist", version="3.1")
        return manager

    return build


@pytest.fixture
def fleet(make, manager_of):
    """The strategies of a full installation, as descriptors: three chips, one default."""
    return manager_of(
        make.strategy("reference"),
        make.strategy("uniform", device_lengths=False, graph_support=GraphSupport.UNIFORM_BATCH, priority=0),
        make.strategy(
            "flat-rows",
            priority=20,
            requirements=Requirements(("cuda",), ("sm90",), ("paged-mqa-logits",)),
        ),
        make.strategy(
            "ragged-rows",
            priority=20,
            requirements=Requirements(("cuda",), ("sm100", "sm103"), ("paged-mqa-logits",)),
        ),
    )


@pytest.mark.parametrize(
    ("word", "device_type", "kernels", "ragged"),
    [
        ("cpu", "cpu", (), "reference"),
        ("sm90", "cuda", ("paged-mqa-logits",), "flat-rows"),
        ("sm100", "cuda", ("paged-mqa-logits",), "ragged-rows"),
        ("sm103", "cuda", ("paged-mqa-logits",), "ragged-rows"),
        # The kernel is not proven: an import, a family or a neighbour is no proof.
        ("sm90", "cuda", (), "reference"),
        ("sm120", "cuda", ("paged-mqa-logits",), "reference"),
        ("sm121", "cuda", ("paged-mqa-logits",), "reference"),
        ("gfx950", "rocm", ("paged-mqa-logits",), "reference"),
    ],
)
def test_injected_capabilities_select_every_path_without_hardware(
    fleet, make, word, device_type, kernels, ragged
):
    """flash-attention #2529: the path of each chip, on a machine that has none of them."""
    capability = make.capability(word, device_type, kernels)
    selection = select_strategies(fleet, capability, LIMITS, "adaptive", use_graphs=True)
    assert selection.ragged.name == ragged
    assert selection.uniform.name == "uniform"
    chosen = {item.name for item in selection.candidates if item.chosen}
    assert chosen == {ragged, "uniform"}
    for item in selection.candidates:
        assert (item.owner, item.version) == ("some-dist", "3.1")
        assert item.chosen or item.reasons or item.priority == 0


def test_the_report_says_what_was_taken_instead_of_what_and_why(fleet, make):
    """flash-attention #2529: a lower choice is never silent."""
    selection = select_strategies(fleet, make.capability("sm120", "cuda"), LIMITS, "adaptive")
    (note,) = [note for note in selection.notes if note.startswith("ragged")]
    assert "took reference (priority 0)" in note
    assert "flat-rows (priority 20): architecture is sm120, needs sm90" in note
    assert "ragged-rows (priority 20): architecture is sm120, needs sm100 or sm103" in note


def test_reasons_and_strategies_are_parted(make, manager_of):
    """A semicolon between reasons, a bar between strategies, and what was taken stands first."""
    manager = manager_of(
        make.strategy("low", priority=5),
        make.strategy("high", priority=20, requirements=Requirements(("cuda",), ("sm90",))),
        make.strategy("higher", priority=30, requirements=Requirements(("rocm",))),
    )
    selection = select_strategies(manager, make.capability(), LIMITS, "adaptive")
    assert selection.notes[0] == (
        "ragged: took low (priority 5), the highest that fits; those before it do not fit: "
        "higher (priority 30): device type is cpu, needs rocm | "
        "high (priority 20): device type is cpu, needs cuda; architecture is cpu, needs sm90"
    )


def test_of_equal_priorities_the_first_name_wins_and_both_say_so(make, manager_of):
    """Whatever the order of discovery: the note and the loser's line name the rule."""
    for names in (("oak", "elm", "ash"), ("ash", "elm", "oak")):
        priorities = {"oak": 10, "elm": 10, "ash": 3}
        manager = manager_of(*(make.strategy(name, priority=priorities[name]) for name in names))
        selection = select_strategies(manager, make.capability(), LIMITS, "adaptive")
        assert selection.ragged.name == "elm"
        assert selection.notes[0] == (
            "ragged: took elm (priority 10), the highest that fits; oak has the same priority, and elm "
            "sorts first by name"
        )
        assert {item.name: item.behind for item in selection.candidates} == {
            "elm": "",
            "oak": "fits; elm has the same priority and sorts first by name",
            "ash": "fits; elm has the higher priority 10",
        }
    named = select_strategies(manager, make.capability(), LIMITS, "adaptive", "ash")
    assert {item.behind for item in named.candidates} == {"", "fits; ash was named explicitly"}


def test_a_named_strategy_s_own_reasons_come_first(make, manager_of):
    """The others are named, when they fit; their reasons are for the doctor."""
    manager = manager_of(
        make.strategy("good"),
        make.strategy("about", requirements=Requirements(("rocm",))),
        make.strategy("wanted", requirements=Requirements(("cuda",), ("sm90",))),
    )
    with pytest.raises(NoStrategyError) as caught:
        select_strategies(manager, make.capability(), LIMITS, "adaptive", "wanted")
    text = str(caught.value)
    own = "wanted: device type is cpu, needs cuda; architecture is cpu, needs sm90 | these fit: good"
    assert own in text
    assert "rocm" not in text
    assert set(caught.value.reasons) == {"good", "about", "wanted"}


def test_all_reasons_are_reported_at_once(make, manager_of):
    """vllm #56620: curing one reason must not uncover the next."""
    manager = manager_of(
        make.strategy(
            "needy",
            graph_support=GraphSupport.UNIFORM_BATCH,
            requirements=Requirements(("cuda",), ("sm90",), ("absent-kernel",), ("absent_module_xyz",)),
            supports=lambda limits: ("page size 64 is not served", "K = 7 is not served"),
        )
    )
    with pytest.raises(NoStrategyError) as caught:
        select_strategies(manager, make.capability(), LIMITS, "adaptive", use_graphs=True)
    reasons = caught.value.reasons["needy"]
    for words in (
        "device type is cpu",
        "architecture is cpu",
        "kernel absent-kernel is absent",
        "module absent_module_xyz",
        "graph support is UNIFORM_BATCH, needs VARLEN_DECODE",
        "page size 64",
        "K = 7",
    ):
        assert any(words in reason for reason in reasons), words
    assert len(reasons) == 7


def test_ragged_lengths_and_graph_support_are_checked_together(make, manager_of):
    """vllm #47808: device lengths with uniform graphs, and ragged graphs without device lengths: both out."""
    manager = manager_of(
        make.strategy("lengths-only", graph_support=GraphSupport.UNIFORM_BATCH),
        make.strategy("graphs-only", device_lengths=False, graph_support=GraphSupport.ALWAYS),
    )
    with pytest.raises(NoStrategyError) as caught:
        select_strategies(manager, make.capability(), LIMITS, "adaptive", use_graphs=True)
    assert caught.value.reasons == {
        "lengths-only": ("graph support is UNIFORM_BATCH, needs VARLEN_DECODE",),
        "graphs-only": ("does not read device lengths, so it cannot serve a trimmed batch",),
    }


def test_without_graphs_graph_support_is_no_condition(make, manager_of):
    """The same strategy serves when nothing is captured."""
    manager = manager_of(make.strategy("lengths-only", graph_support=GraphSupport.NEVER))
    selection = select_strategies(manager, make.capability(), LIMITS, "adaptive", use_graphs=False)
    assert selection.ragged.name == "lengths-only"
    assert selection.uniform is None
    assert any("serves uniform batches too" in note for note in selection.notes)


def test_fixed_mode_can_do_with_a_uniform_strategy_and_says_what_it_loses(make, manager_of):
    """Only adaptive must have ragged lengths; the loss is stated."""
    manager = manager_of(make.strategy("even", device_lengths=False))
    selection = select_strategies(manager, make.capability(), LIMITS, "fixed")
    assert (selection.ragged, selection.uniform.name) == (None, "even")
    assert any("refuses a batch whose query lengths differ" in note for note in selection.notes)
    with pytest.raises(NoStrategyError, match="mode 'fixed'"):
        select_strategies(manager, make.capability(), LIMITS, "adaptive")


def test_priority_decides_and_names_break_ties(make, manager_of):
    """A total order, so that every rank chooses the same."""
    manager = manager_of(
        make.strategy("zeta", priority=5), make.strategy("beta", priority=5), make.strategy("alpha")
    )
    selection = select_strategies(manager, make.capability(), LIMITS, "adaptive")
    assert selection.ragged.name == "beta"
    assert [item.name for item in selection.candidates] == ["beta", "zeta", "alpha"]


def test_a_named_strategy_wins_over_priority(make, manager_of):
    """What the user named is used when it fits."""
    manager = manager_of(make.strategy("high", priority=9), make.strategy("low"))
    selection = select_strategies(manager, make.capability(), LIMITS, "adaptive", named="low")
    assert selection.ragged.name == "low"
    assert "ragged: low was named explicitly" in selection.notes


def test_a_named_strategy_that_does_not_fit_is_an_error_with_all_reasons(fleet, make):
    """vllm #47808: the message names the chip, the chips needed and what to do; nothing replaces it."""
    with pytest.raises(NoStrategyError, match="'flat-rows' was named explicitly") as caught:
        select_strategies(fleet, make.capability("sm120", "cuda"), LIMITS, "adaptive", named="flat-rows")
    assert any("architecture is sm120, needs sm90" in why for why in caught.value.reasons["flat-rows"])
    assert any("kernel paged-mqa-logits is absent" in why for why in caught.value.reasons["flat-rows"])
    assert set(caught.value.reasons) == {"reference", "uniform", "flat-rows", "ragged-rows"}


def test_naming_a_uniform_strategy_for_adaptive_is_an_error(fleet, make):
    """A strategy that cannot serve trimmed batches cannot be all there is."""
    with pytest.raises(NoStrategyError, match="does not read device lengths"):
        select_strategies(fleet, make.capability(), LIMITS, "adaptive", named="uniform")


def test_an_unknown_name_lists_the_known_ones(fleet, make):
    """A typo shows the names there are."""
    with pytest.raises(UnknownNameError, match="flat-rows, ragged-rows, reference, uniform"):
        select_strategies(fleet, make.capability(), LIMITS, "adaptive", named="flatrows")


def test_no_strategies_at_all_is_an_error(make):
    """An installation without plugins says so."""
    with pytest.raises(NoStrategyError, match="no candidates"):
        select_strategies(PluginManager(), make.capability(), LIMITS, "fixed")


def test_a_question_that_raises_is_a_reason_and_not_a_crash(make, manager_of):
    """A stranger's predicate may fail; the other strategies stay usable."""

    def broken(limits):
        raise KeyError("page")

    manager = manager_of(make.strategy("odd", priority=3, supports=broken), make.strategy("plain"))
    selection = select_strategies(manager, make.capability(), LIMITS, "adaptive")
    assert selection.ragged.name == "plain"
    assert "raised KeyError" in selection.candidates[0].reasons[0]


def test_a_kernel_that_only_imports_does_not_select(fleet, make):
    """A wheel built for another torch imports cleanly and misreads every tensor: executed or nothing."""
    from dataclasses import replace

    report = KernelReport("paged-mqa-logits", "2.5", KernelLevel.IMPORTED, "values differ from the answer")
    capability = replace(make.capability("sm90", "cuda"), kernels=(report,))
    selection = select_strategies(fleet, capability, LIMITS, "adaptive")
    assert selection.ragged.name == "reference"
    assert any("imported, needs executed: values differ" in note for note in selection.notes)


@pytest.mark.parametrize("answer", ["no", None, 5, (5,), {"no": 1}])
def test_an_answer_about_limits_that_is_none_is_a_reason(make, answer):
    """A text fell apart into one reason a letter."""
    strategy = make.strategy(supports=lambda limits: answer)
    (reason,) = limit_reasons(strategy, LIMITS)
    assert reason == f"its question about limits returned {answer!r}, and not a tuple of reasons"


def test_an_answer_about_limits_is_passed_on(make):
    assert limit_reasons(make.strategy(), LIMITS) == ()
    assert limit_reasons(make.strategy(supports=lambda limits: ["a", "b"]), LIMITS) == ("a", "b")
