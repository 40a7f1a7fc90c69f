"""Finding plugins by entry point, with one outcome and one reason for each."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from importlib.metadata import EntryPoint

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from adaverify_contracts import ENTRY_POINT_GROUP, DuplicateNameError, LoadOutcome, PluginError
from adaverify_contracts.describing import describe, traceback_of
from adaverify_runtime._nearest import suggestion
from adaverify_runtime._output import output_diverted
from adaverify_runtime.argument_checks import require_loading
from adaverify_runtime.plugins import PluginManager, PluginOutcome
from adaverify_runtime.settings import PluginSettings, Settings

_CONTRACTS = "adaverify-contracts"


def load_plugins(
    settings: Settings | PluginSettings | None = None, entry_points: Iterable[EntryPoint] | None = None
) -> PluginManager:
    """Load every plugin that the settings allow and return the manager that holds them.

    A plugin that fails on its own becomes an outcome with a reason and its traceback in the start-up report.
    One that the user named (``enabled`` or ``required``) must load. Requirements on the device are checked
    later, by ``PluginManager.check_requirements``, since probes come from plugins.

    Args:
        settings: all settings or those of the plugins; read from the environment when None.
        entry_points: what to load instead of the installed group ``adaverify``.

    Raises:
        SettingsError: the settings are something else.
        PluginError: a named plugin was not discovered, is disabled, has an unmet requirement, failed to
            import or raised; or any plugin breaks the hook contract.
        DuplicateNameError: two distributions offer one name.
    """
    manager, refusal = examine_plugins(settings, entry_points)
    if refusal is not None:
        raise refusal
    return manager


def examine_plugins(
    settings: Settings | PluginSettings | None = None, entry_points: Iterable[EntryPoint] | None = None
) -> tuple[PluginManager, PluginError | None]:
    """Load what ``load_plugins`` would and return it with the first error that stops it, None without one.

    For lists of what is there: a plugin that breaks the contract is an outcome beside the others.
    """
    require_loading(settings, entry_points)
    chosen = settings.plugins if isinstance(settings, Settings) else settings or PluginSettings()
    if entry_points is None:
        entry_points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    manager = PluginManager()
    named = tuple(dict.fromkeys((*(chosen.enabled or ()), *chosen.required)))
    manager.name_explicitly(named)
    found, refusals = _by_name(entry_points)
    for name, entry_point in found.items():
        outcome, refusal = _load_one(manager, chosen, name, entry_point)
        if outcome is not None:
            manager.record(outcome)
        if refusal is not None:
            refusals.append(refusal)
    missing = tuple(name for name in named if name not in found)
    if missing:
        refusals.append(_not_discovered(chosen, missing, tuple(found)))
    for name in chosen.disabled:
        if name not in found:
            manager.warn(
                f"ADAVERIFY_PLUGINS_DISABLED names {name}, which was not discovered{suggestion(name, found)}"
            )
    try:
        manager.fail_if_named([item for item in manager.plugins() if item.outcome is not LoadOutcome.LOADED])
    except PluginError as error:
        refusals.append(error)
    return manager, refusals[0] if refusals else None


def _not_discovered(chosen: PluginSettings, missing: tuple[str, ...], found: tuple[str, ...]) -> PluginError:
    """Return the error about names that nothing provides: by variable, beside all names that were found."""
    listed = {
        "ADAVERIFY_PLUGINS_ENABLED": chosen.enabled or (),
        "ADAVERIFY_PLUGINS_REQUIRED": chosen.required,
    }
    where = " and ".join(variable for variable, names in listed.items() if set(names) & set(missing))
    return PluginError(
        f"{where} names what was not discovered: {', '.join(missing)}{suggestion(missing[0], found)}",
        plugin=missing[0],
        arrived=missing,
        allowed=f"discovered: {', '.join(found) or 'nothing, no plugin is installed'}",
        remedy="install the distribution that provides it, or correct the name",
    )


def _by_name(entry_points: Iterable[EntryPoint]) -> tuple[dict[str, EntryPoint], list[PluginError]]:
    """Return the first entry point of every name, and an error for each other one."""
    found: dict[str, EntryPoint] = {}
    refusals: list[PluginError] = []
    for entry_point in sorted(entry_points, key=lambda item: (item.name, _owner(item)[0])):
        known = found.setdefault(entry_point.name, entry_point)
        if known is not entry_point and (known.value, _owner(known)) != (
            entry_point.value,
            _owner(entry_point),
        ):
            owners = (_owner(known)[0], _owner(entry_point)[0])
            refusals.append(DuplicateNameError("plugin", entry_point.name, owners))
    return found, refusals


def _load_one(
    manager: PluginManager, settings: PluginSettings, name: str, entry_point: EntryPoint
) -> tuple[PluginOutcome | None, PluginError | None]:
    """Load one plugin; return its outcome unless it loaded, which the manager records itself.

    Second comes the error where it breaks the contract, so that nothing may start.
    """
    owner, version = _owner(entry_point)

    def failed(
        outcome: LoadOutcome, reason: str, error: BaseException | None = None
    ) -> tuple[PluginOutcome, None]:
        told = "" if error is None else traceback_of(error)
        return PluginOutcome(name, owner, version, outcome, reason, told), None

    if name in settings.disabled:
        return failed(LoadOutcome.DISABLED, "ADAVERIFY_PLUGINS_DISABLED lists it")
    if settings.enabled is not None and name not in (*settings.enabled, *settings.required):
        return failed(LoadOutcome.DISABLED, "ADAVERIFY_PLUGINS_ENABLED does not list it")
    if isinstance(entry_point, EntryPoint) and not EntryPoint.pattern.match(entry_point.value):
        reason = f"its entry point is malformed: {entry_point.value!r} is no module:object"
        return failed(LoadOutcome.IMPORT_FAILED, reason)
    if reason := _contracts_mismatch(entry_point):
        return failed(LoadOutcome.UNMET, reason)
    try:
        with output_diverted():
            plugin = entry_point.load()
    except (ImportError, AttributeError) as error:
        reason = f"importing {entry_point.value} failed: {describe(error)}"
        return failed(LoadOutcome.IMPORT_FAILED, reason, error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a stranger's module may raise anything; it is kept and reported
        reason = f"{entry_point.value} raised while it was imported: {describe(error)}"
        return failed(LoadOutcome.RAISED, reason, error)
    try:
        with output_diverted():
            manager.register(plugin, name, owner=owner, version=version)
    except PluginError as error:
        told = error.advising(f"list {name} in ADAVERIFY_PLUGINS_DISABLED")
        told.__cause__ = error
        return failed(LoadOutcome.RAISED, str(error), error)[0], told
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a registration hook may raise anything; it is kept and reported
        return failed(LoadOutcome.RAISED, f"a registration hook raised: {describe(error)}", error)
    return None, None


def _contracts_mismatch(entry_point: EntryPoint) -> str:
    """Return why the plugin's declared range of the contracts excludes the installed ones, or nothing."""
    try:
        installed = metadata.version(_CONTRACTS)
    except metadata.PackageNotFoundError:
        # Run from a source tree: there is no version to compare with.
        return ""
    for text in (entry_point.dist.requires or ()) if entry_point.dist is not None else ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) != _CONTRACTS:
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and not requirement.specifier.contains(installed, prereleases=True):
            return f"needs {_CONTRACTS} {requirement.specifier}, installed is {installed}"
    return ""


def _owner(entry_point: EntryPoint) -> tuple[str, str]:
    """Return the distribution's name and version; the module path where there is no distribution."""
    if entry_point.dist is None:
        return entry_point.value, ""
    return entry_point.dist.name, entry_point.dist.version
