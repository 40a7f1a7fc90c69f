"""Everything a command needs to run the engine: settings, plugins, device, model, drafter, cost table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adaverify.blame import blaming_plugins
from adaverify.captured import captured_sizes
from adaverify.console import note
from adaverify.devices import usable_device
from adaverify.drafting import DRAFTER, FALLBACK, choose_drafting, require_known
from adaverify.said import priced_or_said
from adaverify.sizing import require_cache
from adaverify_contracts import (
    BlockDrafter,
    Capability,
    CostTableError,
    Drafter,
    DrafterDescriptor,
    EngineError,
    FingerprintMismatchError,
    LoadedModel,
    ModelOptions,
    UnknownNameError,
)
from adaverify_engine import Engine, EngineOptions
from adaverify_engine.profiling import check_cost_table, fingerprint, grid_for, profile_engine
from adaverify_runtime import (
    Mode,
    PluginManager,
    Settings,
    assemble,
    check_calibration,
    contained_as,
    doctor,
    load_plugins,
    read_settings,
)
from adaverify_verification import CostTable, Fingerprint, ProfileGrid, TableCheck

if TYPE_CHECKING:
    import torch

MODEL = "smollm2-135m"
CONCURRENCY = 4
# What a sequence holds beside its drafts when a step is priced: context, certain token and bonus token.
_AROUND_DRAFTS = 3
_SHORTEST = 128
FetchProgress = Callable[[int, int | None], None]
StepProgress = Callable[[int, int], None]
CaptureProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for; None leaves the decision to the settings, the drafter's to the model.

    ``uncalibrated`` overrules the settings' calibration.
    """

    model: str = MODEL
    drafter: str | list[str] | None = None
    device: str | None = None
    dtype: str | None = None
    draft_tokens: int | None = None
    seed: int | None = None
    offline: bool = False
    calibration: Path | None = None
    uncalibrated: bool = False

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters that were named, first the one that matters."""
        return (self.drafter,) if isinstance(self.drafter, str) else tuple(self.drafter or ())


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded model with everything that engines are made of.

    ``rivals`` are the drafters that ``drafter`` is held against; ``fallback`` says why the one made for the
    model is not ``drafter``.
    """

    settings: Settings
    plugins: PluginManager
    model: LoadedModel
    drafter: DrafterDescriptor
    options: EngineOptions
    capability: Capability
    model_name: str = MODEL
    rivals: tuple[DrafterDescriptor, ...] = ()
    fallback: str = ""

    @property
    def fingerprint(self) -> Fingerprint:
        """The setup that this session's cost tables belong to."""
        geometry = self.model.model.geometry
        ladder, bare, drafter = self.ladder, self.bare_ladder, self.drafter.name
        return fingerprint(geometry, self.options, self.capability, ladder, drafter, bare)

    def rivalled(self) -> tuple[Session, ...]:
        """Return this session with each of the rivals as its drafter; a calibration is one drafter's own."""
        paths = self.settings.paths.model_copy(update={"calibration": None})
        settings = replace(self.settings, paths=paths)
        return tuple(
            replace(self, drafter=one, rivals=(), fallback="", settings=settings) for one in self.rivals
        )

    def new_drafter(self, device: torch.device) -> Drafter | BlockDrafter:
        """Return what the drafter's factory makes; raises ``PluginError`` where it breaks its contract."""
        registered = {entry.descriptor.name: entry.plugin for entry in self.plugins.drafters()}
        plugin = registered.get(self.drafter.name, self.drafter.name)
        return contained_as(plugin, self.drafter).factory(self.options.limits, device)

    @property
    def ladder(self) -> tuple[int, ...]:
        """Token counts that adaptive engines of this session will capture; none where steps run eagerly."""
        return captured_sizes(self.settings.graphs, self.options)[0]

    @property
    def bare_ladder(self) -> tuple[int, ...]:
        """Request counts that they will capture for steps that draft nothing; none likewise."""
        return captured_sizes(self.settings.graphs, self.options)[1]

    @property
    def longest(self) -> int:
        """The longest sequence that may run: the model's limit, or ADAVERIFY_ENGINE_MAX_MODEL_LEN if set."""
        limit = self.model.model.geometry.max_model_len
        preset = self.settings.engine
        return min(limit, preset.max_model_len) if "max_model_len" in preset.model_fields_set else limit

    @property
    def concurrency(self) -> int:
        """Requests at once when the command line names no number."""
        preset = self.settings.engine
        return preset.max_requests if "max_requests" in preset.model_fields_set else CONCURRENCY

    def sized(self, concurrency: int, needed: int, engines: int = 1) -> Session:
        """Return this session for other sizes.

        The length is rounded up to a power of two, so that runs of like prompts share a cost table.

        Args:
            concurrency: requests at once.
            needed: tokens of the longest sequence.
            engines: engines that will hold a KV cache at the same time.

        Raises:
            EngineError: K leaves no room for a request, or the caches are larger than the memory.
        """
        wanted = max(needed, self.options.draft_tokens + _AROUND_DRAFTS, _SHORTEST)
        length = min(1 << (wanted - 1).bit_length(), self.longest)
        options = replace(self.options, max_requests=concurrency, max_model_len=length)
        _require_room(options.draft_tokens, length)
        require_cache(options, self.model.model.geometry, self.capability.memory_bytes, engines)
        return replace(self, options=options)

    def engine(
        self,
        mode: Mode,
        cost_table: CostTable | None = None,
        captured: CaptureProgress | None = None,
        *,
        bare: bool | None = None,
    ) -> Engine:
        """Return a fresh engine in ``mode``, its decode steps captured where the device captures.

        Engines of one session differ in nothing but the mode.

        Args:
            mode: ``none``, ``fixed`` or ``adaptive``.
            cost_table: what adaptive plans with.
            captured: called as ``captured(done, total)`` before each captured size.
            bare: whether drafting-free steps are captured; as the mode needs when None.
        """
        engine = self.uncaptured(mode, cost_table)
        with blaming_plugins(self.plugins):
            report = engine.capture(
                None if captured is None else lambda done, total, _: captured(done, total), bare=bare
            )
        for failure in () if report is None else report.failed:
            note(f"mode {mode}: no graph for {failure.key.tokens} tokens ({failure.stage}): {failure.cause}")
        return engine

    def uncaptured(self, mode: Mode, cost_table: CostTable | None = None) -> Engine:
        """Return a fresh engine in ``mode`` that runs every step eagerly until it is told to capture."""
        limits = self.options.limits
        # Whoever runs without a table was told why, and what to do, by ``pricing``.
        with blaming_plugins(self.plugins), priced_or_said(cost_table is None):
            verifier = assemble(
                limits,
                device=self.options.device,
                mode=mode,
                settings=self.settings,
                plugins=self.plugins,
                capability=self.capability,
                drafter=self.drafter,
                cost_table=cost_table,
                target=self.model.model.geometry.name,
            )
            if self.fallback and mode != "none":
                verifier.manager.note(0, FALLBACK)
            return Engine(self.model, verifier, self.new_drafter(verifier.device), self.options)


def _require_room(draft_tokens: int, length: int) -> None:
    most = max(length - _AROUND_DRAFTS, 0)
    if draft_tokens > most:
        raise EngineError(
            "K leaves no room for a request",
            arrived=draft_tokens,
            allowed=f"0 .. {most}: a sequence of {length} tokens holds context, drafts and bonus token",
            remedy="choose a smaller --draft-tokens",
        )


def discover() -> tuple[Settings, PluginManager]:
    """Return the settings in force and the plugins that are installed.

    Raises:
        SettingsError: a setting is wrong; names its variable.
        PluginError: a plugin breaks its contract, or a named one cannot be used.
    """
    settings = read_settings()
    return settings, load_plugins(settings)


def open_session(
    choice: Choice,
    fetched: FetchProgress | None = None,
    *,
    load: Callable[[ModelOptions], LoadedModel] | None = None,
) -> Session:
    """Load settings, plugins and the model.

    Args:
        choice: what the user asked for.
        fetched: called as ``fetched(done, total)`` while the model is fetched.
        load: loads the model in place of the registered one of that name.

    Raises:
        SettingsError, PluginError: the surroundings are wrong.
        UnknownNameError: no model or drafter has the name; lists those that were discovered.
        CapabilityError: there is no such device.
        ModelFileError: the model cannot be fetched or read.
        CalibrationError: the calibration file cannot be read, or is of another signal, K, target or drafter.
        EngineError: a size is out of range.
    """
    settings, plugins = discover()
    if choice.calibration is not None or choice.uncalibrated:
        paths = settings.paths.model_copy(update={"calibration": choice.calibration})
        settings = replace(settings, paths=paths)
    models = {entry.descriptor.name: entry.descriptor for entry in plugins.models()}
    drafters = {entry.descriptor.name: entry.descriptor for entry in plugins.drafters()}
    if load is None and choice.model not in models:
        raise UnknownNameError("model", choice.model, tuple(models))
    require_known(choice.drafters or (DRAFTER,), drafters)
    preset = settings.engine
    options = EngineOptions(
        max_requests=preset.max_requests,
        draft_tokens=preset.draft_tokens if choice.draft_tokens is None else choice.draft_tokens,
        max_model_len=preset.max_model_len,
        page_size=preset.page_size,
        num_pages=preset.num_pages,
        prefill_chunk=preset.prefill_chunk,
        seed=preset.seed if choice.seed is None else choice.seed,
        device=usable_device(settings.device.name if choice.device is None else choice.device),
        dtype=choice.dtype or preset.dtype,
    )
    if "max_model_len" in preset.model_fields_set:
        _require_room(options.draft_tokens, preset.max_model_len)
    # Before the model, and before anything is measured: a wrong file should cost neither.
    settings = check_calibration(settings, plugins, options.limits, drafter=next(iter(choice.drafters), None))
    with blaming_plugins(plugins):
        model = (load or models[choice.model].load)(
            ModelOptions(device=options.device, dtype=options.dtype, offline=choice.offline, progress=fetched)
        )
    capability = doctor(settings, options.device, plugins=plugins).capability
    with blaming_plugins(plugins):
        chosen = choose_drafting(choice.drafters, drafters, model.model.geometry.name, options.draft_tokens)
    check_calibration(settings, plugins, options.limits, model.model.geometry.name, chosen.first.name)
    if chosen.fallback:
        note(chosen.fallback)
    return Session(
        settings,
        plugins,
        model,
        chosen.first,
        options,
        capability,
        choice.model,
        chosen.rivals,
        chosen.fallback,
    )


def table_path(session: Session) -> Path:
    """Return where this session's cost table is kept: the user's choice, or one file a setup and size."""
    if session.settings.paths.cost_table is not None:
        return session.settings.paths.cost_table
    # The sizes are no part of the fingerprint (a table for 16 requests serves 4), but a table for 4 would be
    # stretched over 16, so each size has a file of its own.
    sizes = (session.options.max_requests, session.options.max_model_len)
    key = hashlib.sha256(repr((session.fingerprint.pairs, sizes)).encode()).hexdigest()[:16]
    return session.settings.paths.cache / "cost-tables" / f"{key}.json"


def stored_table(session: Session) -> tuple[CostTable | None, str]:
    """Return the stored table that fits this setup, or None, and what was found in words.

    A table that the user named must fit: its errors are raised. One of our own that does not, or that was
    measured on a busy machine, is measured anew.

    Raises:
        FingerprintMismatchError, CostTableError: the named table belongs to another setup or is unreadable.
    """
    path = table_path(session)
    named = session.settings.paths.cost_table is not None
    if not named and not path.exists():
        return None, "no cost table for this setup yet"
    try:
        table = CostTable.load(path, session.fingerprint)
    except (FingerprintMismatchError, CostTableError) as error:
        if named:
            variable = "ADAVERIFY_PATHS_COST_TABLE"
            raise error.within(variable, f"set {variable} to another table, or unset it") from error
        return None, f"the stored cost table is not usable: {error.problem}"
    if table.disturbed and not named:
        return None, f"the stored cost table was measured on a busy machine: {table.disturbed[0]}"
    return table, f"cost table {path}"


def check_stored(session: Session, table: CostTable) -> TableCheck:
    """Measure a few points of a stored table again, on an engine of this session's sizes."""
    engine = session.engine("fixed", bare=True)
    try:
        with blaming_plugins(session.plugins):
            return check_cost_table(engine, table)
    finally:
        engine.verifier.close()


def profile_command(session: Session) -> str:
    """Return the command that measures and stores this session's table: its sizes are the table's."""
    options = session.options
    return (
        f"adaverify profile --concurrency {options.max_requests} --context {options.max_model_len} "
        f"--draft-tokens {options.draft_tokens} --model {session.model_name} "
        f"--drafter {session.drafter.name} --device {options.device} --dtype {options.dtype}"
    )


def measure_table(
    session: Session,
    progress: StepProgress | None = None,
    *,
    repeats: int = 5,
    grid: ProfileGrid | None = None,
) -> CostTable:
    """Measure this setup's step times, for real, on an engine of this session's sizes.

    Args:
        session: of the sizes.
        progress: called as ``progress(done, total)``.
        repeats: recorded rounds of the whole grid.
        grid: what to measure in its place.
    """
    engine = session.engine("fixed", bare=True)
    tiers, bare = engine.verifier.tiers, engine.verifier.bare_tiers
    try:
        with blaming_plugins(session.plugins):
            return profile_engine(
                engine,
                grid or grid_for(session.options, repeats=repeats, ladder=tiers, bare=bare),
                progress=progress,
            )
    finally:
        engine.verifier.close()


def store_table(table: CostTable, path: Path) -> None:
    """Write a cost table; raises ``CostTableError`` with the path where that is not possible."""
    try:
        table.save(path)
    except OSError as error:
        raise CostTableError(
            f"the cost table cannot be written: {error.strerror}",
            arrived=str(path),
            allowed="a file in a writable folder",
            remedy="pass --table FILE, or set ADAVERIFY_PATHS_CACHE to a writable folder",
        ) from error
