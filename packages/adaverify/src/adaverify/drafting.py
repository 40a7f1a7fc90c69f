"""Which drafter a run uses, which ones it is held against, and what happens where it cannot serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adaverify_contracts import AdaverifyError, DrafterDescriptor, EngineError, UnknownNameError

DRAFTER = "n-gram"
"""Needs no weights and drafts for any model."""
FALLBACK = "drafter-fallback"
"""Counted once in every engine that drafts with ``DRAFTER`` because the model's own drafter cannot serve."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """The drafters of a session.

    Attributes:
        first: drafts in every mode.
        rivals: the modes run once more with each of these.
        fallback: why the drafter made for the model is not ``first``; empty where it is, or none was made.
    """

    first: DrafterDescriptor
    rivals: tuple[DrafterDescriptor, ...] = ()
    fallback: str = ""


def require_known(
    named: Sequence[str], drafters: Mapping[str, DrafterDescriptor], not_loaded: tuple[str, ...] = ()
) -> None:
    """Refuse a name that nothing registered.

    Args:
        named: what is asked for.
        drafters: registered, by name.
        not_loaded: what ``PluginManager.not_loaded`` says, for the message.

    Raises:
        UnknownNameError: lists those that were discovered, and plugins that are not used.
    """
    for name in named:
        if name not in drafters:
            raise UnknownNameError("drafter", name, tuple(drafters), not_loaded)


def choose_drafting(
    named: Sequence[str], drafters: Mapping[str, DrafterDescriptor], model: str, draft_tokens: int
) -> Drafting:
    """Return the drafters to run with.

    Without a name it is the one made for the model, held against ``DRAFTER``; where that one cannot serve,
    ``DRAFTER`` alone, with the reason. Naming a drafter that cannot serve is an error.

    Args:
        named: what the user asked for, first the one that matters; may be empty.
        drafters: registered, by name.
        model: name of the loaded model.
        draft_tokens: K.

    Raises:
        UnknownNameError: a name that nothing registered.
        EngineError: a named drafter cannot serve; gives its reason.
        AdaverifyError: asking a named drafter raised.
    """
    require_known(named or (DRAFTER,), drafters)
    if named:
        chosen = [drafters[name] for name in dict.fromkeys(named)]
        for one in chosen:
            require_serving(one, model, draft_tokens)
        return Drafting(chosen[0], tuple(chosen[1:]) if draft_tokens else ())
    plain, reasons = drafters[DRAFTER], []
    for one in drafters.values():
        if one.target != model:
            continue
        try:
            reason = one.refusal(draft_tokens)
        except AdaverifyError as error:
            # Nobody named it, so what it raises is why it is not used, and said like any other reason.
            reason = error.problem
        if not reason:
            return Drafting(one, (plain,) if draft_tokens else ())
        reasons.append(f"drafter {one.name} is not used, {reason}: {DRAFTER} drafts in its place")
    return Drafting(plain, (), "; ".join(reasons))


def require_serving(drafter: DrafterDescriptor, model: str | None, draft_tokens: int) -> None:
    """Refuse a drafter that cannot draft K tokens, or not for this model.

    Args:
        drafter: named by the user.
        model: name of the loaded model; None before it is loaded, when only K is judged.
        draft_tokens: K.

    Raises:
        EngineError: gives its reason.
    """
    reason = drafter.refusal(draft_tokens)
    if model is not None and drafter.target not in (None, model):
        reason = f"it was made for the model {drafter.target}, and {model} runs"
    if reason:
        raise EngineError(
            f"the drafter {drafter.name} cannot serve: {reason}",
            allowed="a drafter that serves this model and this K",
            remedy=f"choose --drafter {DRAFTER}, or leave --drafter out",
        )
