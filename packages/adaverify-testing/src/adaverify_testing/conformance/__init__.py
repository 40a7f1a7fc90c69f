"""The conformance kit: does a decode strategy do what its descriptor and the contract say?"""

from adaverify_testing.conformance.report import CheckOutcome, ConformanceReport
from adaverify_testing.conformance.running import conformance_checks, run_conformance

__all__ = ["CheckOutcome", "ConformanceReport", "conformance_checks", "run_conformance"]
