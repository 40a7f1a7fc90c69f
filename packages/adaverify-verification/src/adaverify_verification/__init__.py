"""Adaptive verification: how many draft tokens a step verifies, and which."""

from adaverify_verification.assignment import Assigner, Assignment
from adaverify_verification.calibration_file import (
    calibration_subject,
    load_state,
    save_state,
    signal_of,
    subject_names,
)
from adaverify_verification.calibration_study import Study, calibration_state, cross_study, study
from adaverify_verification.candidates import admit
from adaverify_verification.contention import ContentionWatch
from adaverify_verification.cost_model import CostModel
from adaverify_verification.cost_table import CostCurve, CostTable
from adaverify_verification.digest import agree, apply_plan, common_tier, export_plan
from adaverify_verification.evidence import Evidence, Gathered, gather
from adaverify_verification.fingerprint import Fingerprint
from adaverify_verification.lossless import Verdict, effective_seen, require_lossless, verdict
from adaverify_verification.manager import VerificationManager
from adaverify_verification.options import ManagerOptions
from adaverify_verification.policies import PricePolicy, RatioPolicy
from adaverify_verification.profiling import ProfileGrid, profile_cost
from adaverify_verification.records import request_rows
from adaverify_verification.relay import CpuRelay, CudaRelay, Relay, make_relay
from adaverify_verification.reliability import Bin, PositionReliability
from adaverify_verification.signals import (
    ACCEPTANCE_HISTORY,
    CALIBRATED,
    DRAFTER,
    OPTIMISTIC,
    TEMPERATURE_SCALED,
    builtin_signals,
)
from adaverify_verification.table_check import TableCheck, check_table

__all__ = [
    "ACCEPTANCE_HISTORY",
    "CALIBRATED",
    "DRAFTER",
    "OPTIMISTIC",
    "TEMPERATURE_SCALED",
    "Assigner",
    "Assignment",
    "Bin",
    "ContentionWatch",
    "CostCurve",
    "CostModel",
    "CostTable",
    "CpuRelay",
    "CudaRelay",
    "Evidence",
    "Fingerprint",
    "Gathered",
    "ManagerOptions",
    "PositionReliability",
    "PricePolicy",
    "ProfileGrid",
    "RatioPolicy",
    "Relay",
    "Study",
    "TableCheck",
    "Verdict",
    "VerificationManager",
    "admit",
    "agree",
    "apply_plan",
    "builtin_signals",
    "calibration_state",
    "calibration_subject",
    "check_table",
    "common_tier",
    "cross_study",
    "effective_seen",
    "export_plan",
    "gather",
    "load_state",
    "make_relay",
    "profile_cost",
    "request_rows",
    "require_lossless",
    "save_state",
    "signal_of",
    "study",
    "subject_names",
    "verdict",
]
