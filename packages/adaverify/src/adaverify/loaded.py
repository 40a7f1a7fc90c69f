"""What a model's plugin returned, held against the contract: the model, token ids, requests that failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from adaverify.console import count_of
from adaverify_contracts import EngineError, LoadedModel, PluginError
from adaverify_contracts.describing import kind_of, shown
from adaverify_engine import Completion, FinishReason
from adaverify_engine.compare import Failure
from adaverify_engine.parts import lacking_in
from adaverify_engine.request import prompt_ids
from adaverify_runtime import PluginManager

_SHOWN = 80
"""Characters of what arrived: an answer may be of any length."""


def plugin_of(plugins: PluginManager, model: str) -> str | None:
    """Return the plugin that registered ``model``; None for one that was passed in its place."""
    return next((entry.plugin for entry in plugins.models() if entry.descriptor.name == model), None)


def require_loaded(loaded: object, model: str, plugins: PluginManager) -> LoadedModel:
    """Return what the model's ``load`` returned, a model that can run.

    Raises:
        PluginError: it is something else; names the plugin and what is lacking.
    """
    lacks = lacking_in(loaded)
    if not lacks:
        assert isinstance(loaded, LoadedModel)  # noqa: S101 - just asked
        return loaded
    raise _blame(
        plugins,
        model,
        "load returned no model that can run",
        lacks,
        "a LoadedModel with a TargetModel and a Tokenizer",
    )


def require_ids(
    found: object, method: str, place: str, vocabulary: int, model: str, plugins: PluginManager
) -> list[int]:
    """Return the token ids that a tokenizer gave for a prompt.

    Args:
        found: what it returned.
        method: ``encode`` or ``chat``.
        place: which prompt, for the message.
        vocabulary: number of token ids of the model.
        model: its name; plugins: where it was registered.

    Raises:
        PluginError: it is no list of ids of the vocabulary; names the plugin.
    """
    try:
        ids = prompt_ids(found)
    except EngineError:
        ids = None
    strange = [one for one in ids or () if not 0 <= one < vocabulary]
    if ids is not None and not strange:
        return ids
    arrived = f"{strange[:8]}" if strange else f"{kind_of(found)}: {shown(found)[:_SHOWN]}"
    problem = f"the tokenizer's {method} returned no token ids for {place}"
    raise _blame(plugins, model, problem, arrived, f"a list of int in 0 .. {vocabulary - 1}")


def require_completed(done: Iterable[Completion], model: str, plugins: PluginManager) -> None:
    """Refuse completions of which one failed, where each is needed to the end.

    Raises:
        PluginError: names the plugin, how many failed, and the first error.
    """
    every = list(done)
    errors = [one.error for one in every if one.reason is FinishReason.FAILED]
    if errors:
        problem = f"the tokenizer failed for {len(errors)} of {count_of(len(every), 'prompt')}"
        raise _blame(plugins, model, problem, errors[0], "the text of every token")


def failures_in_words(
    failed: Sequence[Failure], prompts: int, model: str, plugins: PluginManager
) -> list[str]:
    """Return one line for each error of failed requests: plugin, how many, where, and why."""
    owner = plugin_of(plugins, model)
    who = f"model {model}" if owner is None else f"plugin {owner}, model {model}"
    by_error: dict[str, list[Failure]] = {}
    for one in failed:
        by_error.setdefault(one.error, []).append(one)
    lines = []
    for error, them in by_error.items():
        modes = ", ".join(dict.fromkeys(one.mode for one in them))
        lost = len({one.prompt for one in them})
        lines.append(f"{who}: {lost} of {count_of(prompts, 'prompt')} failed in {modes}: {error}")
    return lines


def failures_by_mode(failed: Iterable[Mapping[str, object]], prompts: int) -> str:
    """Return in words how many prompts failed in each mode, an empty string where none did."""
    lost: dict[object, set[object]] = {}
    for one in failed:
        lost.setdefault(one["mode"], set()).add(one["prompt"])
    parts = [f"{len(them)} of {count_of(prompts, 'prompt')} in {mode}" for mode, them in lost.items()]
    return f"Failed: {', '.join(parts)}." if parts else ""


def _blame(plugins: PluginManager, model: str, problem: str, arrived: str, allowed: str) -> PluginError:
    owner = plugin_of(plugins, model)
    of = "" if owner is None else f" of plugin {owner!r}"
    remedy = "report it to the plugin's author"
    return PluginError(
        f"model {model!r}{of}: {problem}",
        plugin=owner,
        arrived=arrived,
        allowed=allowed,
        remedy=remedy if owner is None else f"{remedy}, or list {owner} in ADAVERIFY_PLUGINS_DISABLED",
    )
