"""Settings, plugin manager, strategy selection and start-up report; assembles a verifier."""

from adaverify_runtime.assembly import assemble
from adaverify_runtime.backends import BackendCandidate, BackendSelection, select_backend
from adaverify_runtime.calibration import Calibration, check_calibration, read_calibration, settings_for
from adaverify_runtime.capture import GraphedSteps
from adaverify_runtime.decision import Decision, decide_strategy
from adaverify_runtime.doctor import admit, doctor
from adaverify_runtime.loading import examine_plugins, load_plugins
from adaverify_runtime.making import contained, contained_as
from adaverify_runtime.observers import DisabledObserver
from adaverify_runtime.parts import Replayed
from adaverify_runtime.plugins import Observer, PluginManager, PluginOutcome, Registered
from adaverify_runtime.report import Component, StartupReport, plugin_warnings
from adaverify_runtime.row_choice import Choice, RowChoice, RowCost, RowCostTable
from adaverify_runtime.selection import (
    Candidate,
    Selection,
    limit_reasons,
    review_strategies,
    select_strategies,
)
from adaverify_runtime.settings import (
    BridgeSettings,
    DeviceSettings,
    EngineSettings,
    GraphSettings,
    Mode,
    PathSettings,
    PlannerSettings,
    PluginSettings,
    RelaySettings,
    Settings,
    SparseMoeSettings,
    idle_threads_sleep,
    known_variables,
    read_settings,
)
from adaverify_runtime.staging import Staged
from adaverify_runtime.verifier import Verifier

__all__ = [
    "BackendCandidate",
    "BackendSelection",
    "BridgeSettings",
    "Calibration",
    "Candidate",
    "Choice",
    "Component",
    "Decision",
    "DeviceSettings",
    "DisabledObserver",
    "EngineSettings",
    "GraphSettings",
    "GraphedSteps",
    "Mode",
    "Observer",
    "PathSettings",
    "PlannerSettings",
    "PluginManager",
    "PluginOutcome",
    "PluginSettings",
    "Registered",
    "RelaySettings",
    "Replayed",
    "RowChoice",
    "RowCost",
    "RowCostTable",
    "Selection",
    "Settings",
    "SparseMoeSettings",
    "Staged",
    "StartupReport",
    "Verifier",
    "admit",
    "assemble",
    "check_calibration",
    "contained",
    "contained_as",
    "decide_strategy",
    "doctor",
    "examine_plugins",
    "idle_threads_sleep",
    "known_variables",
    "limit_reasons",
    "load_plugins",
    "plugin_warnings",
    "read_calibration",
    "read_settings",
    "review_strategies",
    "select_backend",
    "select_strategies",
    "settings_for",
]
