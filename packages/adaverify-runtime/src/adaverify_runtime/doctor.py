"""The doctor: the start-up report of this machine, or of one that is only assumed, without a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from adaverify_capability import assume as assume_capability
from adaverify_contracts import AdaverifyError, Capability, KernelLevel, KernelReport, Limits
from adaverify_runtime.assembly import Ground, build_report, graph_mode, prepare
from adaverify_runtime.backends import BackendSelection, select_backend
from adaverify_runtime.loading import load_plugins
from adaverify_runtime.plugins import D, PluginManager, Registered, pick
from adaverify_runtime.report import StartupReport
from adaverify_runtime.row_alternatives import choose_alternatives, load_for
from adaverify_runtime.selection import Selection, review_strategies, select_strategies
from adaverify_runtime.settings import Settings, read_settings


def doctor(
    settings: Settings | None = None,
    device: str | torch.device | None = None,
    assume: str | None = None,
    *,
    kernels: Iterable[str | KernelReport] = (),
    plugins: PluginManager | None = None,
    limits: Limits | None = None,
) -> StartupReport:
    """Return the start-up report; whatever keeps a verifier from being assembled is in its ``problems``.

    Probes run in a child process: one that kills it is an absent kernel with the signal as its reason.

    Args:
        settings: all settings; read from the environment when None.
        device: the device to probe; the setting ``ADAVERIFY_DEVICE_NAME`` when None.
        assume: an architecture word; nothing is probed then.
        kernels: kernels to take as executed on the assumed device.
        plugins: loaded plugins; discovered when None.
        limits: sizes to ask the strategies about; None skips that question.

    Raises:
        SettingsError: a setting is wrong.
        PluginError: a plugin breaks its contract, or a named one cannot be used.
        CapabilityError: the device cannot be read.
        UnknownNameError: the assumed word is not in the architecture table.
    """
    capability: Capability | None = None
    if assume is not None:
        settings = settings or read_settings()
        plugins = plugins or load_plugins(settings)
        probed = [entry.descriptor.name for entry in plugins.probes()]
        capability, device = assume_capability(assume, kernels, probed=probed), device or "cpu"
    ground = prepare(
        device=device, mode=None, settings=settings, plugins=plugins, capability=capability, isolated=True
    )
    problems: list[str] = []
    backends = _backends(ground, problems)
    selection = _strategies(ground, limits, backends, problems)
    _graphs(ground, backends, selection, problems)
    chosen = ground.settings.planner
    _require(ground.plugins.signals(), "signal", chosen.signal, problems)
    _require(ground.plugins.policies(), "policy", chosen.policy, problems)
    notes = (*selection.notes, *_rows(ground, selection, limits, problems), *_drafters(ground))
    if ground.capability.assumed:
        notes = (_assumed(ground.capability), *notes)
    return build_report(ground, selection, backends, notes=notes, problems=tuple(problems))


def _graphs(ground: Ground, backends: BackendSelection, selection: Selection, problems: list[str]) -> None:
    """Ask for the graph level that ``assemble`` would ask for."""
    try:
        graph_mode(ground, backends, selection)
    except AdaverifyError as error:
        problems.append(str(error))


def _rows(
    ground: Ground, selection: Selection, limits: Limits | None, problems: list[str]
) -> tuple[str, ...]:
    path, table = ground.settings.paths.row_costs, None
    try:
        table = None if path is None else load_for(path, ground.capability, limits)
    except AdaverifyError as error:
        problems.append(str(error))
        return ()
    return choose_alternatives(selection, table).notes


def _drafters(ground: Ground) -> tuple[str, ...]:
    """Return why drafters cannot serve."""
    width = ground.settings.engine.draft_tokens
    return tuple(
        f"drafter {entry.descriptor.name} cannot serve: {reason}"
        for entry in ground.plugins.drafters()
        if (reason := entry.descriptor.refusal(width))
    )


def _assumed(capability: Capability) -> str:
    taken = [item.name for item in capability.kernels if item.level is KernelLevel.EXECUTED]
    kernels = f"kernels taken as executed: {', '.join(taken)}" if taken else "no kernel is taken as executed"
    return f"device: {capability.architecture} is assumed; {kernels}"


def _require(entries: tuple[Registered[D], ...], kind: str, name: str, problems: list[str]) -> None:
    try:
        pick(entries, kind, name)
    except AdaverifyError as error:
        problems.append(str(error))


def _backends(ground: Ground, problems: list[str]) -> BackendSelection:
    named = ground.settings.graphs.backend
    try:
        return select_backend(ground.plugins, ground.capability, named)
    except AdaverifyError as error:
        problems.append(str(error))
        return select_backend(ground.plugins, ground.capability)


def _strategies(
    ground: Ground, limits: Limits | None, backends: BackendSelection, problems: list[str]
) -> Selection:
    use_graphs = ground.wants_ragged_graphs(backends)
    arguments = (ground.plugins, ground.capability, limits, ground.mode)
    try:
        return select_strategies(*arguments, ground.settings.device.strategy, use_graphs=use_graphs)
    except AdaverifyError as error:
        problems.append(str(error))
        return Selection(None, None, review_strategies(*arguments, use_graphs=use_graphs), ())
