"""``adaverify audit``: whether signals and policies keep the target's law, by exact enumeration."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, TypeVar

import typer

from adaverify.blame import blaming_plugins
from adaverify.console import (
    CHECK_FAILED,
    count_of,
    emit_json,
    err,
    note,
    out,
    progress,
    reports_errors,
    say,
    table,
)
from adaverify.options import Json
from adaverify.session import discover_here
from adaverify.usage import LARGEST_SEED
from adaverify_contracts import AdaverifyError, PolicyDescriptor, Seen, SignalDescriptor, UnknownNameError
from adaverify_runtime import PluginManager, Settings, contained
from adaverify_verification import effective_seen, verdict
from adaverify_verification.audit import PAIRS, KnownViolation, PairReport, audit_pair, known_violations

_D = TypeVar("_D")
_SCORES = {"history": Seen.HISTORY, "prefix": Seen.PREFIX, "drawn-token": Seen.DRAWN_TOKEN}


def _scores(word: str) -> str:
    if word not in _SCORES:
        raise typer.BadParameter(f"{word!r} is nothing that scores see; allowed: {', '.join(_SCORES)}")
    return word


@dataclass(frozen=True, slots=True)
class Failure:
    """A pair that was not audited, and what one of the two raised."""

    signal: str
    policy: str
    error: AdaverifyError

    def as_dict(self) -> dict[str, str]:
        """Return the pair and the reason, JSON-ready."""
        return {"signal": self.signal, "policy": self.policy, "reason": str(self.error)}


@reports_errors
def audit(
    signal: Annotated[
        list[str] | None, typer.Option(help="Audit this signal alone; may be repeated. All when omitted.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Audit this policy alone; may be repeated. All when omitted.")
    ] = None,
    scores: Annotated[
        str,
        typer.Option(
            callback=_scores, help="What the toy drafter's scores have seen: history, prefix or drawn-token."
        ),
    ] = "prefix",
    toys: Annotated[int, typer.Option(min=1, help="Toy models for each pair.")] = PAIRS,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the toy models.")] = 0,
    json: Json = False,
) -> None:
    """Enumerate what every signal with every policy emits on toy models, jointly for the whole batch.

    Each pair runs in the real manager, third-party ones included. The distance of the emitted law from the
    target's is rounding, or the pair is not lossless. Known violations are enumerated as well, to show that
    the audit finds what is there to be found.

    Exits with 1 when a pair as it is served moves the law, or a known violation is not reproduced; with 3
    when a pair that was named, or is in force, cannot run. Others that cannot are told, and the rest goes on.
    """
    settings, plugins = discover_here()
    absent = plugins.not_loaded()
    signals, policies = (
        _chosen("signal", _signals(plugins), signal, absent),
        _chosen("policy", _policies(plugins), policy, absent),
    )
    contract = _contract(settings, plugins)
    known = known_violations()
    reports, failures = [], []
    with progress() as display:
        task = display.add_task("enumerating", total=len(signals) * len(policies) * toys, note="")
        for number, (one, other) in enumerate(product(signals, policies), 1):
            display.update(task, note=f"{one.name}, {other.name}")
            try:
                with blaming_plugins(plugins):
                    reports.append(
                        audit_pair(
                            one,
                            other,
                            scores=_SCORES[scores],
                            pairs=toys,
                            seed=seed,
                            progress=lambda _done, _total: display.update(task, advance=1),
                        )
                    )
            except AdaverifyError as error:
                failures.append(Failure(one.name, other.name, error))
            display.update(task, completed=number * toys)
    chosen = settings.planner
    refusal = _refusal(failures, signal or [chosen.signal], policy or [chosen.policy])
    passed = refusal is None and all(one.lossless for one in reports)
    passed = passed and all(one.reproduced for one in known)
    if json:
        emit_json(
            {
                "passed": passed,
                "toys": toys,
                "seed": seed,
                "scores": scores,
                "pairs": [one.as_dict() for one in reports],
                "failed": [one.as_dict() for one in failures],
                "known": [one.as_dict() for one in known],
                "in_force": contract,
            }
        )
    else:
        _render(reports, known, contract)
    _say_not_audited(failures, len(signals) * len(policies))
    if refusal is not None:
        raise refusal
    if not passed:
        raise typer.Exit(CHECK_FAILED)


def _refusal(failures: list[Failure], signals: list[str], policies: list[str]) -> AdaverifyError | None:
    """Return what the first of these signals raised with one of these policies, None where all ran."""
    asked = (one.error for one in failures if one.signal in signals and one.policy in policies)
    return next(asked, None)


def _signals(plugins: PluginManager) -> dict[str, SignalDescriptor]:
    return {entry.descriptor.name: contained(entry) for entry in plugins.signals()}


def _policies(plugins: PluginManager) -> dict[str, PolicyDescriptor]:
    return {entry.descriptor.name: contained(entry) for entry in plugins.policies()}


def _chosen(kind: str, known: dict[str, _D], names: list[str] | None, absent: tuple[str, ...]) -> list[_D]:
    """Return the descriptors of these names, in this order; all of them without names."""
    for name in names or ():
        if name not in known:
            raise UnknownNameError(kind, name, tuple(known), absent)
    return [known[name] for name in names or known]


def _contract(settings: Settings, plugins: PluginManager) -> list[dict[str, Any]]:
    """Return, for the signal and policy in force, what the contract says with each drafter there is."""
    absent = plugins.not_loaded()
    (signal,) = _chosen("signal", _signals(plugins), [settings.planner.signal], absent)
    (policy,) = _chosen("policy", _policies(plugins), [settings.planner.policy], absent)
    rows = []
    for entry in plugins.drafters():
        drafter = entry.descriptor
        found = verdict(
            effective_seen(signal, drafter.seen),
            policy.reads,
            drafter_deterministic=drafter.deterministic,
            sampled=True,
        )
        rows.append(
            {
                "signal": signal.name,
                "policy": policy.name,
                "drafter": drafter.name,
                "allowed": found.allowed,
                "reason": found.reason,
            }
        )
    return rows


def _render(
    reports: list[PairReport], known: tuple[KnownViolation, ...], contract: list[dict[str, Any]]
) -> None:
    out().print(
        table(
            "Signals and policies, as served",
            ("signal", "policy", "trims sampled", "moved", "wrong", "trimmed", "if trusted"),
            [
                (
                    one.signal,
                    one.policy,
                    one.allowed,
                    f"{one.served.largest:.1e}",
                    f"{one.served.wrong} of {len(one.served.distances)}",
                    f"{100 * one.trimmed:.0f} %",
                    None if one.trusted is None else f"{one.trusted.largest:.1e}",
                )
                for one in reports
            ],
        )
    )
    out().print()
    out().print(
        table(
            "Known violations",
            ("case", "emitted", "target", "moved", "as known", "rule"),
            [
                (
                    one.case,
                    _law(one.found),
                    _law(one.target),
                    f"{one.moved:.3f}",
                    one.reproduced,
                    one.rule,
                )
                for one in known
            ],
        )
    )
    out().print()
    for row in contract:
        allowed = "may trim sampled requests" if row["allowed"] else "verifies sampled requests whole"
        say(
            f"In force, with drafter {row['drafter']}: {row['signal']} and {row['policy']} {allowed}; "
            f"{row['reason']}."
        )
    _say_failures(reports, known)


def _say_not_audited(failures: list[Failure], pairs: int) -> None:
    """Say how many pairs were not audited, each reason once with all that it kept from running."""
    told: dict[str, list[str]] = {}
    for one in failures:
        told.setdefault(one.error.problem, []).append(f"{one.signal} with {one.policy}")
    for problem, names in told.items():
        say(f"not audited: {', '.join(names)}; {problem}", "yellow", to=err())
    if failures:
        note(f"not audited in all: {len(failures)} of {count_of(pairs, 'pair')}")


def _law(law: dict[str, float]) -> str:
    return "\n".join(f"{name} {share:.4g}" for name, share in law.items())


def _say_failures(reports: list[PairReport], known: tuple[KnownViolation, ...]) -> None:
    wrong = [one for one in reports if not one.lossless]
    for one in wrong:
        say(
            f"signal {one.signal} with policy {one.policy} changes what is emitted: "
            f"{one.served.largest:.3g} in total variation. One of them does more than it declares.",
            "bold red",
            to=err(),
        )
    for case in known:
        if not case.reproduced:
            say(f"{case.case} was not reproduced: this audit proves nothing.", "bold red", to=err())
    if not wrong:
        toys = sum(len(one.served.distances) for one in reports)
        most = max((one.served.largest for one in reports), default=0.0)
        say(f"The emitted joint law is the target's on all {toys} toys, to {most:.1e}.")
    for one in reports:
        failures = {name: n for name, n in one.counters.items() if name.endswith(("-raised", "-nonsense"))}
        for name, count in failures.items():
            say(f"signal {one.signal} with policy {one.policy}: {name} {count} times.", "yellow", to=err())
