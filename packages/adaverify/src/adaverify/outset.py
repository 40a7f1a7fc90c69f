"""What a command knows before a model is loaded: enough to refuse at once what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from adaverify.blame import blaming_plugins
from adaverify.calibration_source import naming_setting
from adaverify.captured import captured_sizes
from adaverify.devices import usable_device
from adaverify.drafting import DRAFTER, Drafting, choose_drafting, require_known, require_serving
from adaverify.sizing import require_cache, require_room, sized_options
from adaverify_contracts import (
    Capability,
    CapabilityError,
    DrafterDescriptor,
    LoadedModel,
    ModelGeometry,
    ModelOptions,
    PluginError,
    UnknownNameError,
)
from adaverify_engine import EngineOptions
from adaverify_engine.options import prefill_chunk_on
from adaverify_engine.profiling import fingerprint
from adaverify_runtime import (
    Mode,
    PluginManager,
    Settings,
    admit,
    check_calibration,
    contained,
    doctor,
)
from adaverify_verification import Fingerprint

MODEL = "smollm2-135m"
CONCURRENCY = 4
Load = Callable[[ModelOptions], LoadedModel]


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
class Outset:
    """Settings, plugins, device and sizes, no model yet.

    Attributes:
        choice: what the user asked for.
        settings, plugins: of this process; a calibration file has chosen the signal.
        options: of the engine, as far as they do not depend on the job.
        capability: of the device.
        load: loads the model.
        geometry: of the model, as its descriptor has it; None where only loading tells.
        drafting: who drafts; None where that depends on what only loading tells.
    """

    choice: Choice
    settings: Settings
    plugins: PluginManager
    options: EngineOptions
    capability: Capability
    load: Load
    geometry: ModelGeometry | None = None
    drafting: Drafting | None = None

    @property
    def longest(self) -> int | None:
        """Tokens that no sequence may exceed, as far as is known: the model's limit, a lower one if set."""
        return longest_of(self.settings, self.geometry)

    @property
    def concurrency(self) -> int:
        """Requests at once when the command line names no number."""
        preset = self.settings.engine
        return preset.max_requests if "max_requests" in preset.model_fields_set else CONCURRENCY

    def require_sizes(self, concurrency: int, needed: int, engines: int = 1) -> None:
        """Refuse sizes that no model, or not this one, can have; what only loading tells is left to it.

        Args:
            concurrency: requests at once.
            needed: tokens of the longest sequence, or fewer where that is not known yet.
            engines: engines that will hold a KV cache at the same time, or fewer likewise.

        Raises:
            EngineError: a size is out of range, K leaves no room, or the caches are larger than the memory.
            LimitsError: the sizes together do not fit the integers that kernels read.
        """
        options = replace(self.options, max_requests=concurrency)
        if self.longest is not None:
            options = sized_options(options, concurrency, needed, self.longest)
        options.limits  # noqa: B018 - checks itself
        if self.geometry is not None:
            require_cache(options, self.geometry, self.capability.memory_bytes, engines)

    def fingerprint(self, concurrency: int) -> Fingerprint | None:
        """Return the setup that cost tables will belong to; None where only loading tells."""
        if self.geometry is None or self.drafting is None:
            return None
        options = replace(self.options, max_requests=concurrency)
        ladder, bare = captured_sizes(self.settings.graphs, options)
        return fingerprint(self.geometry, options, self.capability, ladder, self.drafting.first.name, bare)

    def opened(self, geometry: ModelGeometry) -> Drafting:
        """Return who drafts for the model that was loaded, held against what was known before.

        Raises:
            PluginError: the model is not what its descriptor says.
            EngineError: a named drafter cannot serve it, or K leaves no room.
            CalibrationError: the calibration file is of another target or drafter.
        """
        if self.geometry is not None and geometry != self.geometry:
            raise PluginError(
                f"the model {self.choice.model} is not what its descriptor says",
                arrived=geometry,
                allowed=repr(self.geometry),
                remedy="report it to the plugin's author",
            )
        return self.drafting or _drafting(self, geometry)


def outset_of(
    choice: Choice,
    settings: Settings,
    plugins: PluginManager,
    *,
    mode: Mode = "fixed",
    load: Load | None = None,
) -> Outset:
    """Return what is known before the model is loaded; refuse what cannot be.

    Args:
        choice: what the user asked for.
        settings, plugins: of this process.
        mode: the mode to come that asks most of the device.
        load: loads the model in place of the registered one of that name.

    Raises:
        UnknownNameError: no model or drafter has the name; lists those that were discovered.
        CapabilityError: there is no such device, or no verifier can be assembled on it; has every reason.
        CalibrationError: the calibration file cannot be read, or is of another signal, K, target or drafter.
        EngineError: a size is out of range, a named drafter cannot serve, or K leaves no room.
    """
    if choice.calibration is not None or choice.uncalibrated:
        paths = settings.paths.model_copy(update={"calibration": choice.calibration})
        settings = replace(settings, paths=paths)
    options = _options(choice, settings)
    # Before anything of a plugin is looked at: one that requires another device has nothing to offer here.
    capability = admit(settings, plugins, options.device)
    models = {entry.descriptor.name: entry.descriptor for entry in plugins.models()}
    if load is None and choice.model not in models:
        raise UnknownNameError("model", choice.model, tuple(models), plugins.not_loaded())
    drafters = _drafters(plugins)
    require_known(choice.drafters or (DRAFTER,), drafters, plugins.not_loaded())
    geometry = models[choice.model].geometry if load is None else None
    with blaming_plugins(plugins):
        for name in choice.drafters:
            require_serving(drafters[name], None, options.draft_tokens)
    if (longest := longest_of(settings, geometry)) is not None:
        require_room(options.draft_tokens, longest)
    # Before the model, and before anything is measured: a wrong file should cost neither.
    named = next(iter(choice.drafters), None)
    with blaming_plugins(plugins), naming_setting(choice.calibration):
        settings = check_calibration(settings, plugins, options.limits, drafter=named)
    outset = Outset(
        choice,
        settings,
        plugins,
        options,
        _capability(settings, plugins, options.device, mode, capability),
        load or models[choice.model].load,
        geometry,
    )
    return outset if geometry is None else replace(outset, drafting=_drafting(outset, geometry))


def _capability(
    settings: Settings, plugins: PluginManager, device: str, mode: Mode, capability: Capability | None
) -> Capability:
    """Return what the device can do; refuse one on which no verifier can be assembled, with all reasons.

    The calibration file was judged before, of the drafter and K that were asked for.
    """
    planner = settings.planner.model_copy(update={"mode": mode})
    paths = settings.paths.model_copy(update={"calibration": None})
    settings = replace(settings, planner=planner, paths=paths)
    report = doctor(settings, device, plugins=plugins, capability=capability)
    if report.problems:
        raise CapabilityError(
            "no verifier can be assembled here",
            arrived=" | ".join(report.problems),
            allowed="settings and plugins that fit this device",
            remedy="cure each of them; `adaverify doctor` lists what there is",
        )
    return report.capability


def longest_of(settings: Settings, geometry: ModelGeometry | None) -> int | None:
    """Return the model's limit, or ADAVERIFY_ENGINE_MAX_MODEL_LEN where that is set and lower.

    None where neither is known.
    """
    preset = settings.engine
    limits = [preset.max_model_len] if "max_model_len" in preset.model_fields_set else []
    limits += [] if geometry is None else [geometry.max_model_len]
    return min(limits, default=None)


def _options(choice: Choice, settings: Settings) -> EngineOptions:
    preset = settings.engine
    device = usable_device(settings.device.name if choice.device is None else choice.device)
    return EngineOptions(
        max_requests=preset.max_requests,
        draft_tokens=preset.draft_tokens if choice.draft_tokens is None else choice.draft_tokens,
        max_model_len=preset.max_model_len,
        page_size=preset.page_size,
        num_pages=preset.num_pages,
        prefill_chunk=preset.prefill_chunk or prefill_chunk_on(device),
        seed=preset.seed if choice.seed is None else choice.seed,
        device=device,
        dtype=choice.dtype or preset.dtype,
    )


def _drafters(plugins: PluginManager) -> Mapping[str, DrafterDescriptor]:
    return {entry.descriptor.name: contained(entry) for entry in plugins.drafters()}


def _drafting(outset: Outset, geometry: ModelGeometry) -> Drafting:
    """Return who drafts for a model, the calibration file being of them."""
    drafters, options = _drafters(outset.plugins), outset.options
    with blaming_plugins(outset.plugins):
        chosen = choose_drafting(outset.choice.drafters, drafters, geometry.name, options.draft_tokens)
    with blaming_plugins(outset.plugins), naming_setting(outset.choice.calibration):
        check_calibration(outset.settings, outset.plugins, options.limits, geometry.name, chosen.first.name)
    return chosen
