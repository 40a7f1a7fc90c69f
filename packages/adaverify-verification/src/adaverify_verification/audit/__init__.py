"""Proof or refutation of losslessness by exact enumeration of joint output laws."""

from adaverify_verification.audit.enumeration import (
    EXACT,
    AuditReport,
    Revealed,
    Rule,
    ToyRequest,
    audit,
    distance,
    emitted_law,
    random_request,
    target_law,
)
from adaverify_verification.audit.known import KnownViolation, known_violations
from adaverify_verification.audit.managed import ManagedRule, Setup, trusting
from adaverify_verification.audit.pairs import PAIRS, PairReport, audit_pair, setups

__all__ = [
    "EXACT",
    "PAIRS",
    "AuditReport",
    "KnownViolation",
    "ManagedRule",
    "PairReport",
    "Revealed",
    "Rule",
    "Setup",
    "ToyRequest",
    "audit",
    "audit_pair",
    "distance",
    "emitted_law",
    "known_violations",
    "random_request",
    "setups",
    "target_law",
    "trusting",
]
