"""Everything a command needs to run the engine: settings, plugins, model, drafter, cost table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from adaverify_contracts import (
    Capability,
    CostTableError,
    DrafterDescriptor,
    FingerprintMismatchError,
    LoadedModel,
    ModelOptions,
    UnknownNameError,
)
from adaverify_engine import Engine, EngineOptions
from adaverify_engine.profiling import fingerprint, grid_for, profile_engine
from adaverify_runtime import Mode, PluginManager, Settings, assemble, load_plugins, read_settings
from adaverify_verification import CostTable, Fingerprint

MODEL = "smollm2-135m"
DRAFTER = "n-gram"
FetchProgress = Callable[[int, int | None], None]
StepProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for; None leaves the decision to the settings."""

    model: str = MODEL
    drafter: str = DRAFTER
    device: str = "cpu"
    dtype: str | None = None
    draft_tokens: int | None = None
    seed: int | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded model with everything that engines are made of."""

    settings: Settings
    plugins: PluginManager
    model: LoadedModel
    drafter: DrafterDescriptor
    options: EngineOptions
    capability: Capability | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """The setup that this session's cost tables belong to."""
        if self.capability is None:
            return self.sized(1, self.options.max_model_len).probed().fingerprint
        return fingerprint(self.model.model.geometry, self.options, self.capability)

    def sized(self, concurrency: int, max_model_len: int) -> Session:
        """Return this session for other sizes; raises ``EngineError`` for impossible ones."""
        limit = min(max_model_len, self.model.model.geometry.max_model_len)
        return replace(self, options=replace(self.options, max_requests=concurrency, max_model_len=limit))

    def probed(self) -> Session:
        """Return this session with its device probed."""
        return replace(self, capability=self.engine("none").verifier.capability)

    def engine(self, mode: Mode, cost_table: CostTable | None = None) -> Engine:
        """Return a fresh engine in ``mode``; engines of one session differ in nothing else."""
        limits = self.options.limits
        verifier = assemble(
            limits,
            device=self.options.device,
            mode=mode,
            settings=self.settings,
            plugins=self.plugins,
            capability=self.capability,
            drafter=self.drafter,
            cost_table=cost_table,
        )
        drafter = self.drafter.factory(limits, verifier.device)
        return Engine(self.model, verifier, drafter, self.options)


def open_session(choice: Choice, fetched: FetchProgress | None = None) -> Session:
    """Load settings, plugins and the model.

    Raises:
        SettingsError, PluginError: the surroundings are wrong.
        UnknownNameError: no model or drafter has the name; lists those that were discovered.
        ModelFileError: the model cannot be fetched or read.
        EngineError: a size is out of range.
    """
    settings = read_settings()
    plugins = load_plugins(settings)
    models = {entry.descriptor.name: entry.descriptor for entry in plugins.models()}
    drafters = {entry.descriptor.name: entry.descriptor for entry in plugins.drafters()}
    if choice.model not in models:
        raise UnknownNameError("model", choice.model, tuple(models))
    if choice.drafter not in drafters:
        raise UnknownNameError("drafter", choice.drafter, tuple(drafters))
    preset = settings.engine
    options = EngineOptions(
        max_requests=preset.max_requests,
        draft_tokens=preset.draft_tokens if choice.draft_tokens is None else choice.draft_tokens,
        max_model_len=preset.max_model_len,
        page_size=preset.page_size,
        num_pages=preset.num_pages,
        prefill_chunk=preset.prefill_chunk,
        seed=preset.seed if choice.seed is None else choice.seed,
        device=choice.device,
        dtype=choice.dtype or preset.dtype,
    )
    model = models[choice.model].load(
        ModelOptions(device=options.device, dtype=options.dtype, offline=choice.offline, progress=fetched)
    )
    return Session(settings, plugins, model, drafters[choice.drafter], options)


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

    A table that the user named must fit: its errors are raised. One of our own that does not is measured
    anew.

    Raises:
        FingerprintMismatchError, CostTableError: the named table belongs to another setup or is unreadable.
    """
    path = table_path(session)
    named = session.settings.paths.cost_table is not None
    if not named and not path.exists():
        return None, "no cost table for this setup yet"
    try:
        return CostTable.load(path, session.fingerprint), f"cost table {path}"
    except (FingerprintMismatchError, CostTableError) as error:
        if named:
            raise
        return None, f"the stored cost table is not usable: {error.problem}"


def measure_table(session: Session, progress: StepProgress | None = None, *, repeats: int = 5) -> CostTable:
    """Measure this setup's step times and store the table, except where the user named a file to read."""
    engine = session.engine("fixed")
    table = profile_engine(engine, grid_for(session.options, repeats=repeats), progress=progress)
    engine.verifier.close()
    if session.settings.paths.cost_table is None:
        path = table_path(session)
        path.parent.mkdir(parents=True, exist_ok=True)
        table.save(path)
    return table
