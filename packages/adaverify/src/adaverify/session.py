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
from adaverify.drafting import FALLBACK
from adaverify.loaded import require_loaded
from adaverify.outset import MODEL, Choice, Load, Outset, longest_of, outset_of
from adaverify.said import priced_or_said
from adaverify.sizing import require_cache, sized_options
from adaverify_contracts import (
    BlockDrafter,
    Capability,
    CostTableError,
    Drafter,
    DrafterDescriptor,
    FingerprintMismatchError,
    LoadedModel,
    ModelOptions,
)
from adaverify_engine import Engine, EngineOptions
from adaverify_engine.profiling import check_cost_table, fingerprint, grid_for, profile_engine
from adaverify_runtime import (
    Mode,
    PluginManager,
    Settings,
    admit,
    assemble,
    contained_as,
    load_plugins,
    read_settings,
)
from adaverify_verification import CostTable, Fingerprint, ProfileGrid, TableCheck

if TYPE_CHECKING:
    import torch

FetchProgress = Callable[[int, int | None], None]
StepProgress = Callable[[int, int], None]
CaptureProgress = Callable[[int, int], None]


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
        geometry = self.model.model.geometry
        return longest_of(self.settings, geometry) or geometry.max_model_len

    def sized(self, concurrency: int, needed: int, engines: int = 1) -> Session:
        """Return this session for other sizes; see ``sized_options``.

        Args:
            concurrency: requests at once.
            needed: tokens of the longest sequence.
            engines: engines that will hold a KV cache at the same time.

        Raises:
            EngineError: K leaves no room for a request, or the caches are larger than the memory.
        """
        options = sized_options(self.options, concurrency, needed, self.longest)
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
        for kind, found in (("tokens", report), ("prompt tokens", engine.prompt_captures)):
            for failure in () if found is None else found.failed:
                size = f"{failure.key.tokens} {kind}"
                note(f"mode {mode}: no graph for {size} ({failure.stage}): {failure.cause}")
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


def discover() -> tuple[Settings, PluginManager]:
    """Return the settings in force and the plugins that are installed.

    Raises:
        SettingsError: a setting is wrong; names its variable.
        PluginError: a plugin breaks its contract, or a named one cannot be used.
    """
    settings = read_settings()
    return settings, load_plugins(settings)


def discover_here() -> tuple[Settings, PluginManager]:
    """Return what ``discover`` does, without the plugins that require another device than the settings name.

    Raises:
        SettingsError, PluginError: as ``discover`` does.
        CapabilityError: a plugin requires something of the device, and there is no such device.
    """
    settings, plugins = discover()
    if plugins.requiring:
        admit(settings, plugins, usable_device(settings.device.name))
    return settings, plugins


def prepare(choice: Choice, *, mode: Mode = "fixed", load: Load | None = None) -> Outset:
    """Return what is known before the model is loaded; refuse what cannot be.

    Args:
        choice: what the user asked for.
        mode: the mode to come that asks most of the device.
        load: loads the model in place of the registered one of that name.

    Raises:
        SettingsError, PluginError: the surroundings are wrong.
        UnknownNameError, CapabilityError, CalibrationError, EngineError: as ``outset_of`` does.
    """
    return outset_of(choice, *discover(), mode=mode, load=load)


def load_session(outset: Outset, fetched: FetchProgress | None = None) -> Session:
    """Load the model.

    Args:
        outset: what ``prepare`` returned.
        fetched: called as ``fetched(done, total)`` while the model is fetched.

    Raises:
        ModelFileError: the model cannot be fetched or read.
        PluginError: it is no model or not what its descriptor says, or its plugin raised.
        EngineError, CalibrationError: as ``Outset.opened`` does.
    """
    options, choice = outset.options, outset.choice
    with blaming_plugins(outset.plugins):
        model = require_loaded(
            outset.load(
                ModelOptions(
                    device=options.device, dtype=options.dtype, offline=choice.offline, progress=fetched
                )
            ),
            choice.model,
            outset.plugins,
        )
        geometry = model.model.geometry
    chosen = outset.opened(geometry)
    if chosen.fallback:
        note(chosen.fallback)
    return Session(
        outset.settings,
        outset.plugins,
        model,
        chosen.first,
        options,
        outset.capability,
        choice.model,
        chosen.rivals,
        chosen.fallback,
    )


def open_session(
    choice: Choice, fetched: FetchProgress | None = None, *, load: Load | None = None
) -> Session:
    """Load settings, plugins and the model: ``prepare`` and ``load_session`` in one."""
    return load_session(prepare(choice, load=load), fetched)


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
        table = load_named(path, session.fingerprint) if named else CostTable.load(path, session.fingerprint)
    except (FingerprintMismatchError, CostTableError) as error:
        if named:
            raise
        return None, f"the stored cost table is not usable: {error.problem}"
    if table.disturbed and not named:
        return None, f"the stored cost table was measured on a busy machine: {table.disturbed[0]}"
    return table, f"cost table {path}"


def load_named(path: Path, wanted: Fingerprint | None) -> CostTable:
    """Return the table that ADAVERIFY_PATHS_COST_TABLE names.

    Args:
        path: its file.
        wanted: the setup that it must be of; None judges the file alone.

    Raises:
        FingerprintMismatchError, CostTableError: it belongs to another setup or is unreadable; names the
            variable.
    """
    try:
        return CostTable.load(path, wanted)
    except (FingerprintMismatchError, CostTableError) as error:
        variable = "ADAVERIFY_PATHS_COST_TABLE"
        raise error.within(variable, f"set {variable} to another table, or unset it") from error


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
