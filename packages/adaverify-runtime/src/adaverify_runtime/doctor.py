"""The doctor: the start-up report of this machine, or of one that is only assumed, without a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from adaverify_capability import assume as assume_capability
from adaverify_contracts import AdaverifyError, Capability, KernelLevel, KernelReport, Limits
from adaverify_runtime.assembly import Ground, build_report, graph_mode, prepare
from adaverify_runtime.backends import BackendSelection, select_backend
from adaverify_runtime.calibration import check_calibration
from adaverify_runtime.loading import load_plugins
from adaverify_runtime.making import contained
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
    capability: Capability | None = None,
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
        capability: what the device can do, unless one is assumed; probed when None.

    Raises:
        SettingsError: a setting is wrong.
        PluginError: a plugin breaks its contract, or a named one cannot be used.
        CapabilityError: the device cannot be read.
        UnknownNameError: the assumed word is not in the architecture table.
    """
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
    chosen, absent = _calibrated(ground, limits, problems).planner, ground.plugins.not_loaded()
    _require(ground.plugins.signals(), "signal", chosen.signal, absent, problems)
    _require(ground.plugins.policies(), "policy", chosen.policy, absent, problems)
    unserving, failing = _drafters(ground)
    notes = (*selection.notes, *_rows(ground, selection, limits, problems), *unserving)
    if ground.capability.assumed:
        notes = (_assumed(ground.capability), *notes)
    report = build_report(ground, selection, backends, notes=notes, problems=tuple(problems))
    return replace(report, warnings=(*report.warnings, *failing))


def admit(settings: Settings, plugins: PluginManager, device: str | torch.device) -> Capability | None:
    """Drop the plugins that require another device, as every start does, and return what this one can do.

    It is probed, in a child process, only where a plugin requires anything; None otherwise. What is taken
    from ``plugins`` before may belong to one that is dropped.

    Raises:
        PluginError: a plugin that the user named is among them.
        CapabilityError: the device cannot be read.
    """
    if not plugins.requiring:
        return None
    return prepare(
        device=device, mode=None, settings=settings, plugins=plugins, capability=None, isolated=True
    ).capability


def _calibrated(ground: Ground, limits: Limits | None, problems: list[str]) -> Settings:
    """Return settings with the signal of their calibration file, judged as ``assemble`` would."""
    engine = ground.settings.engine
    if ground.settings.paths.calibration is None:
        return ground.settings
    try:
        sizes = limits or Limits(1, engine.draft_tokens, engine.max_model_len, engine.page_size)
        return check_calibration(ground.settings, ground.plugins, sizes)
    except AdaverifyError as error:
        problems.append(str(error.within("ADAVERIFY_PATHS_CALIBRATION")))
        return ground.settings


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


def _drafters(ground: Ground) -> tuple[list[str], list[str]]:
    """Return why drafters cannot serve, and which ones failed when they were asked."""
    width = ground.settings.engine.draft_tokens
    unserving, failing = [], []
    for entry in ground.plugins.drafters():
        try:
            if reason := contained(entry).refusal(width):
                unserving.append(f"drafter {entry.descriptor.name} cannot serve: {reason}")
        except AdaverifyError as error:
            failing.append(error.problem)
    return unserving, failing


def _assumed(capability: Capability) -> str:
    taken = [item.name for item in capability.kernels if item.level is KernelLevel.EXECUTED]
    kernels = f"kernels taken as executed: {', '.join(taken)}" if taken else "no kernel is taken as executed"
    return f"device: {capability.architecture} is assumed; {kernels}"


def _require(
    entries: tuple[Registered[D], ...], kind: str, name: str, absent: tuple[str, ...], problems: list[str]
) -> None:
    try:
        pick(entries, kind, name, absent)
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
