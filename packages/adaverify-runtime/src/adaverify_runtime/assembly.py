"""Putting a verifier together from settings, plugins and a capability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from adaverify_capability import probe
from adaverify_contracts import (
    Capability,
    CapabilityError,
    DecodeRowBuilder,
    DecodeStrategyDescriptor,
    DrafterDescriptor,
    GraphKey,
    GraphSupport,
    KernelLevel,
    Limits,
    LimitsError,
    NoStrategyError,
    Seen,
)
from adaverify_graphs import GraphMode, is_bare, resolve_mode
from adaverify_runtime.allocation import allocating, require_memory, table_bytes
from adaverify_runtime.argument_checks import require_arguments, require_ground, require_mode
from adaverify_runtime.backends import BackendSelection, select_backend
from adaverify_runtime.calibration import calibrate, read_calibration, settings_for
from adaverify_runtime.capture import AssignLive, GraphedSteps
from adaverify_runtime.loading import load_plugins
from adaverify_runtime.making import contained
from adaverify_runtime.observers import ObserverQueue
from adaverify_runtime.parts import Parts
from adaverify_runtime.plugins import PluginManager, pick
from adaverify_runtime.report import StartupReport, components, plugin_warnings
from adaverify_runtime.row_alternatives import choose_alternatives, load_for
from adaverify_runtime.row_choice import RowChoice, RowCostTable
from adaverify_runtime.selection import Selection, select_strategies
from adaverify_runtime.settings import Mode, PlannerSettings, Settings, read_settings
from adaverify_runtime.staging import StaticInputs
from adaverify_runtime.verifier import Verifier
from adaverify_verification import (
    Assignment,
    CostModel,
    CostTable,
    ManagerOptions,
    VerificationManager,
    make_relay,
)
from adaverify_verification.assignment.launch import check_limits

_LEVELS = {
    "never": GraphSupport.NEVER,
    "uniform": GraphSupport.UNIFORM_BATCH,
    "varlen": GraphSupport.VARLEN_DECODE,
}


@dataclass(frozen=True, slots=True)
class Ground:
    """What every choice is made on: settings, plugins, device and its capability."""

    settings: Settings
    plugins: PluginManager
    device: torch.device
    capability: Capability
    mode: str

    @property
    def level(self) -> GraphSupport | None:
        """The graph level the user asked for, None when the choice is open."""
        name = self.settings.graphs.mode
        return None if name is None else _LEVELS[name]

    def wants_ragged_graphs(self, backends: BackendSelection) -> bool:
        """Return whether ragged decode steps will be captured."""
        captures = backends.chosen is not None and backends.chosen.captures
        return captures and self.level in (None, GraphSupport.VARLEN_DECODE)


def prepare(
    *,
    device: str | torch.device | None,
    mode: str | None,
    settings: Settings | None,
    plugins: PluginManager | None,
    capability: Capability | None,
    isolated: bool = False,
) -> Ground:
    """Read settings, load plugins and probe the device, as far as they are not given.

    ``isolated`` probes in a child process, for callers that must survive whatever a probe does.

    Raises:
        SettingsError, PluginError, CapabilityError: as ``read_settings``, ``load_plugins`` and ``probe`` do.
    """
    require_ground(settings, plugins, capability)
    settings = read_settings() if settings is None else settings
    mode = settings.planner.mode if mode is None else require_mode(mode)
    plugins = load_plugins(settings) if plugins is None else plugins
    where = resolve_device(settings.device.name if device is None else device)
    if capability is None:
        probes = [entry.descriptor for entry in plugins.probes()]
        capability = probe(where, probes, override=settings.device.override, isolated=isolated)
    plugins.check_requirements(capability)
    return Ground(settings, plugins, where, capability, mode)


def resolve_device(name: str | torch.device) -> torch.device:
    """Return the torch device of a name; ``auto`` is the accelerator when torch finds one, else the CPU.

    Raises:
        CapabilityError: torch knows no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        problem = "the run device has no name that torch knows"
        allowed = "auto, cpu, cuda or cuda:N"
        raise CapabilityError(problem, arrived=name, allowed=allowed, remedy="correct the name") from error


def assemble(
    limits: Limits,
    *,
    device: str | torch.device | None = None,
    mode: Mode | None = None,
    settings: Settings | None = None,
    plugins: PluginManager | None = None,
    capability: Capability | None = None,
    drafter: DrafterDescriptor | None = None,
    cost_table: CostTable | None = None,
    strategy: str | None = None,
    row_costs: Path | RowCostTable | None = None,
    target: str | None = None,
) -> Verifier:
    """Assemble a verifier: choose every part, allocate every buffer, and report all of it.

    Args:
        limits: sizes fixed at start.
        device: run device; the setting ``ADAVERIFY_DEVICE_NAME`` when None.
        mode: ``none``, ``fixed`` or ``adaptive``; the setting ``ADAVERIFY_PLANNER_MODE`` when None.
        settings: all settings; read from the environment when None.
        plugins: loaded plugins; discovered when None.
        capability: what the device can do; probed when None. Injectable.
        drafter: what the drafter declares; without it the strictest law is assumed for sampled requests.
        cost_table: measured step times; without one everything is verified, state ``unpriced``.
        strategy: a decode strategy by name; the setting ``ADAVERIFY_DEVICE_STRATEGY`` when None.
        row_costs: measured times of the ragged strategies, to choose by where several fit; the file of the
            setting ``ADAVERIFY_PATHS_ROW_COSTS`` when None. A file must have been measured on this device.
        target: the target model's name; a calibration file (``ADAVERIFY_PATHS_CALIBRATION``) must be of it.

    Raises:
        SettingsError: a setting is wrong, or ``settings`` is no ``Settings``.
        DescriptorError: ``drafter`` is no ``DrafterDescriptor``.
        PluginError: a plugin breaks its contract, its factory raised, or a named one cannot be used.
        CapabilityError: the device cannot be probed, or a named backend does not fit.
        NoStrategyError: no decode strategy fits, or the named one does not; carries all reasons.
        CostTableError: ``cost_table`` is none, or the row-cost file cannot be read or was measured on another
            setup.
        CalibrationError: the calibration file cannot be read, or is of another target, drafter, signal or K.
        LosslessError: signal, policy and drafter are unsafe together and the setting is ``refuse``.
        LimitsError: ``limits`` are none, or the buffers do not fit the device; names them and their bytes.
    """
    require_arguments(limits, drafter, cost_table, strategy, row_costs, target)
    ground = prepare(device=device, mode=mode, settings=settings, plugins=plugins, capability=capability)
    path = ground.settings.paths.calibration
    calibration = None if path is None else read_calibration(path)
    ground = replace(ground, settings=settings_for(ground.settings, calibration))
    settings, named = ground.settings, strategy or ground.settings.device.strategy
    backends = select_backend(ground.plugins, ground.capability, settings.graphs.backend)
    selection = select_strategies(
        ground.plugins,
        ground.capability,
        limits,
        ground.mode,
        named,
        use_graphs=ground.wants_ragged_graphs(backends),
    )
    level = graph_mode(ground, backends, selection)
    require_memory(limits, ground.capability)
    with allocating("the static block table", table_bytes(limits)):
        inputs = StaticInputs(limits, ground.device)
    ragged = _allocate(selection.ragged, limits, ground)
    uniform = _allocate(selection.uniform, limits, ground)
    choice = choose_alternatives(selection, _row_costs(row_costs, ground, limits))
    made = (_allocate(item, limits, ground) for item in choice.alternatives)
    others = tuple(builder for builder in made if builder is not None)
    with allocating("the buffers of signal, relay and assignment"):
        manager, notes = _manager(ground, limits, drafter, cost_table)
    if calibration is not None:
        notes = (*notes, calibrate(manager.signal, calibration, target, drafter))
    graphs = _graphs(
        ground, limits, backends, level, (ragged, uniform, *others), inputs, manager, choice.rows
    )
    notes = (*selection.notes, *choice.notes, *notes, f"graphs: {level.support.name}, {level.reason}")
    report = build_report(ground, selection, backends, notes=notes, drafter=drafter)
    observers = ObserverQueue(ground.plugins.step_observers(), settings.plugins.observer_queue)
    return Verifier(
        Parts(
            limits=limits,
            device=ground.device,
            capability=ground.capability,
            manager=manager,
            ragged=ragged,
            uniform=uniform,
            inputs=inputs,
            graphs=graphs,
            observers=observers,
            report=report,
            alternatives=others,
            rows=choice.rows,
            unproven=unproven_kernels(ground.plugins, ground.capability),
        )
    )


def unproven_kernels(plugins: PluginManager, capability: Capability) -> tuple[str, ...]:
    """Return kernels that were probed on this device and did not give the known answer; others replace them.

    A kernel whose probe is for other devices is not one of them, nor on a CPU one that is for accelerators
    as well: torch does its work there. The capability has each reason.
    """
    kind, word = capability.device_type, capability.architecture
    found = []
    for asked in (entry.descriptor for entry in plugins.probes()):
        here = asked.device_types == ("cpu",) if kind == "cpu" else kind in (asked.device_types or (kind,))
        here = here and word in (asked.architectures or (word,))
        if here and capability.kernel(asked.name).level is not KernelLevel.EXECUTED:
            found.append(asked.name)
    return tuple(found)


def build_report(
    ground: Ground,
    selection: Selection,
    backends: BackendSelection,
    *,
    notes: tuple[str, ...] = (),
    problems: tuple[str, ...] = (),
    drafter: DrafterDescriptor | None = None,
) -> StartupReport:
    """Return the start-up report of what was discovered and chosen."""
    settings, plugins = ground.settings, ground.plugins
    chosen = settings.planner
    return StartupReport(
        mode=ground.mode,
        capability=ground.capability,
        plugins=plugins.plugins(),
        strategies=selection.candidates,
        backends=backends.candidates,
        signals=components(plugins.signals(), ("seen", "reads_scores"), chosen.signal),
        policies=components(plugins.policies(), ("reads",), chosen.policy),
        drafters=components(
            plugins.drafters(), ("seen", "deterministic", "target"), None if drafter is None else drafter.name
        ),
        models=components(plugins.models(), ("description",)),
        benchmarks=components(plugins.benchmarks(), ("description",)),
        notes=notes,
        warnings=(*settings.warnings, *plugin_warnings(plugins)),
        problems=problems,
        settings=settings.as_dict(),
    )


def graph_mode(ground: Ground, backends: BackendSelection, selection: Selection) -> GraphMode:
    """Return the graph level in force; raises ``GraphError`` where the one asked for is not to be had."""
    captured = selection.ragged or selection.uniform
    if ground.level is GraphSupport.UNIFORM_BATCH and selection.uniform is not None:
        captured = selection.uniform
    if captured is None:
        return GraphMode(GraphSupport.NEVER, ground.level, "no decode strategy fits")
    return resolve_mode(
        ground.level,
        strategy=captured.graph_support,
        device_lengths=captured.device_lengths,
        backend_captures=backends.chosen is not None and backends.chosen.captures,
    )


def _graphs(
    ground: Ground,
    limits: Limits,
    backends: BackendSelection,
    level: GraphMode,
    builders: tuple[DecodeRowBuilder | None, ...],
    inputs: StaticInputs,
    manager: VerificationManager,
    rows: RowChoice | None,
) -> GraphedSteps | None:
    ragged, uniform, *others = builders
    only_uniform = level.support is GraphSupport.UNIFORM_BATCH and uniform is not None
    builder = uniform if only_uniform else ragged
    if level.support is GraphSupport.NEVER or backends.chosen is None or builder is None:
        return None
    backend = pick(ground.plugins.graph_backends(), "graph backend", backends.chosen.name)
    return GraphedSteps(
        contained(backend).factory(ground.device),
        limits,
        level.support,
        builder,
        inputs,
        manager.buffers,
        assign_live=_assign_live(manager),
        max_graphs=ground.settings.graphs.max_graphs,
        bytes_limit=ground.settings.graphs.bytes_limit,
        alternatives=() if only_uniform else [item for item in others if item is not None],
        rows=None if only_uniform else rows,
        prompts=ground.settings.graphs.prompts,
    )


def _assign_live(manager: VerificationManager) -> AssignLive:
    def assign(inputs: StaticInputs, key: GraphKey) -> Assignment:
        rows = key.requests
        if not is_bare(key, manager.limits):
            manager.capture_live(inputs.scores[:rows], inputs.slots[:rows], inputs.entry)
        return manager.assign_captured(
            rows, key.tokens, inputs.scheduled[:rows], inputs.kv_lens[:rows], inputs.budget
        )

    return assign


def _row_costs(given: Path | RowCostTable | None, ground: Ground, limits: Limits) -> RowCostTable | None:
    given = ground.settings.paths.row_costs if given is None else given
    if given is None or isinstance(given, RowCostTable):
        return given
    return load_for(given, ground.capability, limits)


def _allocate(
    descriptor: DecodeStrategyDescriptor | None, limits: Limits, ground: Ground
) -> DecodeRowBuilder | None:
    if descriptor is None:
        return None
    entry = pick(ground.plugins.decode_strategies(), "decode strategy", descriptor.name)
    try:
        return contained(entry).allocate(limits, ground.device, ground.capability)
    except LimitsError as error:
        if isinstance(error.__cause__, MemoryError | RuntimeError):
            raise
        # A strategy that learns only now that it cannot serve is no reason to take another in silence.
        problem = f"decode strategy {descriptor.name!r} was chosen and refused these limits"
        remedy = "change the limits, or name another strategy"
        raise NoStrategyError(problem, {descriptor.name: (str(error),)}, remedy=remedy) from error


def _manager(
    ground: Ground, limits: Limits, drafter: DrafterDescriptor | None, cost_table: CostTable | None
) -> tuple[VerificationManager, tuple[str, ...]]:
    plugins, chosen = ground.plugins, ground.settings.planner
    absent = plugins.not_loaded()
    backend, why = assign_backend(ground.device, ground.capability, limits)
    notes = [f"assignment: {backend}, {why}"]
    if drafter is None:
        strictest = "sampled requests are planned as if its scores had seen the drawn token"
        notes.append(f"drafter: not declared, so {strictest}")
    manager = VerificationManager(
        limits,
        ground.device,
        signal=contained(pick(plugins.signals(), "signal", chosen.signal, absent)),
        policy=contained(pick(plugins.policies(), "policy", chosen.policy, absent)),
        cost=CostModel(cost_table, online=chosen.online),
        tiers=(),
        options=manager_options(chosen, ground.mode),
        drafter_seen=Seen.DRAWN_TOKEN if drafter is None else drafter.seen,
        drafter_deterministic=drafter is not None and drafter.deterministic,
        assign_backend=backend,
        relay=make_relay(limits, ground.device, ground.settings.relay.depth),
    )
    if ground.mode == "adaptive" and not manager.cost.priced:
        notes.append(f"unpriced: everything is verified, {manager.cost.reason}")
    return manager, tuple(notes)


def manager_options(settings: PlannerSettings, mode: str) -> ManagerOptions:
    """Return the manager's plain options of these settings, with the mode in force."""
    values: dict[str, Any] = settings.model_dump(exclude={"mode", "signal", "policy"})
    return ManagerOptions(mode=mode, **values)


def assign_backend(device: torch.device, capability: Capability, limits: Limits) -> tuple[str, str]:
    """Return the backend of the assignment and why: Triton where it was executed and serves the limits."""
    if device.type == "cpu":
        return "torch", "the device is a CPU"
    report = capability.kernel("triton")
    if report.level is not KernelLevel.EXECUTED:
        return "torch", f"triton is {report.level.name.lower()}: {report.reason}"
    try:
        check_limits(limits)
    except LimitsError as error:
        return "torch", error.problem
    return "triton", "it was executed here and serves these limits"
